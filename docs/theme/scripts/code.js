// Copy buttons that copy exactly the source, and keyboard scrolling where something is wider than its place.

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties)
  made.append(...children)
  return made
}

export function button(text, label) {
  return element("button", { type: "button", className: "rp-copy", ariaLabel: label }, text)
}

export async function copy(pressed, text) {
  const label = pressed.textContent
  try {
    await navigator.clipboard.writeText(await text())
    pressed.textContent = "Copied"
  } catch {
    pressed.textContent = "Not allowed here"
  }
  pressed.classList.add("rp-done")
  setTimeout(() => {
    pressed.textContent = label
    pressed.classList.remove("rp-done")
  }, 1600)
}

// A block that is part of a script has a line below it, which names the script: the button copies that, since a part
// alone would not run.
function made_for(code) {
  const script = code.closest(".highlight")?.nextElementSibling?.dataset.script
  if (!script) return [button("Copy", "Copy this code"), () => code.textContent]
  const name = script.split("/").pop()
  return [button("Copy the script", `Copy the script ${name}`), async () => (await fetch(script)).text()]
}

// A notebook's cells are highlighted by another's hand, which leaves out <code> and brings a button of its own look.
for (const code of document.querySelectorAll(".highlight pre > code, .highlight-ipynb > pre")) {
  const [made, text] = made_for(code)
  made.addEventListener("click", () => copy(made, text))
  const cell = code.closest(".jp-InputArea")
  cell?.querySelector(".zeroclipboard-container")?.remove()
  ;(cell ?? code.closest(".highlight")).append(made)
}

// <button data-copy-url="…">: copies a whole file as it is served.
for (const pressed of document.querySelectorAll("[data-copy-url]")) {
  pressed.addEventListener("click", () => copy(pressed, async () => (await fetch(pressed.dataset.copyUrl)).text()))
}

// <button data-copy-text="…">: copies an address or a command.
for (const pressed of document.querySelectorAll("[data-copy-text]")) {
  pressed.addEventListener("click", () => copy(pressed, async () => pressed.dataset.copyText))
}

// A printed table that is wider than its place: the first column stays in sight, as in any other table.
for (const code of document.querySelectorAll(".language-text pre > code")) {
  const lines = code.textContent.split("\n").filter((line) => line.trim())
  const ends = (at) => lines.every((line) => line.slice(at - 2, at) === "  " && line[at])
  const width = [...Array(33).keys()].find((at) => at > 4 && ends(at))
  if (!width || lines.length < 2) continue
  for (const line of [...code.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE && node.data.trim())) {
    const label = element("span", { className: "rp-label" })
    line.splitText(width)
    line.replaceWith(label)
    label.append(line)
  }
}

const SCROLLABLE = ".highlight pre > code, .md-typeset__scrollwrap, .rp-scroll, .rp-figure, .jp-OutputArea-output pre"
export function reachable() { // measures all before it writes: else each box would be laid out anew, and shut ones opened
  const open = [...document.querySelectorAll(SCROLLABLE)].filter((box) => !box.closest("details:not([open])"))
  const wide = open.map((box) => box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight)
  open.forEach((box, at) => (wide[at] ? box.setAttribute("tabindex", 0) : box.removeAttribute("tabindex")))
}
document.fonts.ready.then(reachable)
addEventListener("resize", reachable)
for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", reachable)
