// A term's meaning shows while the pointer or the focus is on the term, and when it is tapped. Escape hides it. Without
// scripts the term is a link to its entry in the glossary, and a click or a second tap follows the link here, too.

const LEAVE = 150 // ms to get from the term to its meaning
const GAP = 6 // pixels between the two

let shown // the term whose meaning is shown
let leaving

function meaningOf(term) {
  return document.getElementById(term.getAttribute("aria-describedby"))
}

function hide() {
  clearTimeout(leaving)
  if (shown) meaningOf(shown).hidePopover()
  shown = undefined
}

function leave() {
  clearTimeout(leaving)
  leaving = setTimeout(hide, LEAVE)
}

function show(term) {
  clearTimeout(leaving)
  if (shown === term) return
  hide()
  shown = term
  meaningOf(term).showPopover()
  place()
}

function place() {
  if (!shown) return
  const [term, meaning] = [shown, meaningOf(shown)]
  const [at, box] = [term.getClientRects()[0], meaning.getBoundingClientRect()] // of a broken term its first line
  const below = at.bottom + GAP + box.height < innerHeight
  const left = Math.min(at.left, document.documentElement.clientWidth - box.width - GAP)
  meaning.style.left = `${Math.max(GAP, left)}px`
  meaning.style.top = `${below ? at.bottom + GAP : at.top - GAP - box.height}px`
}

for (const term of document.querySelectorAll(".rp-term")) {
  let touched = false // whether the touch that clicks now has only shown the meaning
  term.addEventListener("pointerdown", (event) => { touched = event.pointerType === "touch" && shown !== term })
  term.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && show(term))
  term.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && leave())
  term.addEventListener("focus", () => show(term))
  term.addEventListener("blur", leave)
  term.addEventListener("click", (event) => {
    if (touched) event.preventDefault()
    touched = false
    show(term)
  })
  meaningOf(term).addEventListener("pointerenter", () => clearTimeout(leaving))
  meaningOf(term).addEventListener("pointerleave", leave)
}
addEventListener("keydown", (event) => event.key === "Escape" && hide())
addEventListener("scroll", place, { passive: true }) // the focus scrolls the term into view
addEventListener("resize", place)
addEventListener("pointerdown", (event) => !event.target.closest?.(".rp-term, .rp-meaning") && hide())
