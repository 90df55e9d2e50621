// What a kernel became: its source and its listings in two panes, line linked to line. docs/publish/compiled makes the data.
// Nothing is loaded before a reader opens the viewer; without scripts the link leads to the plain listings.

import { element } from "./code.js"

const PREFIX = "#compiled/"
const PREFERRED = "sm_90" // what most published numbers were measured on
const MACHINE = ["sass", "amdgcn"] // the last form: one for NVIDIA's GPUs, one for AMD's
const UNITS = { python: "lines", triton: "lines", cpp: "lines", graph: "lines", ttir: "operations", ttgir: "operations" }
const SIDES = ["first", "second"] // on a phone one is above the other
const ORIGIN = / {4}\/\/ line (\d+)$/
const MARKER = /^\s*# --8<-- \[/ // of a section that a page embeds: an empty line here, as the numbers have to stay
const LOAD = /\btl\.load\(/
const CHUNK = 100 // lines that are laid out together, and only when they come into sight
const MARKS = 200 // places on the ruler

// ---- highlighting: five kinds a form, each a regular expression without groups, in the order in which they are tried ----

const KINDS = ["comment", "string", "keyword", "number", "name"]
const WORDS = "and|as|assert|async|await|break|class|continue|def|del|elif|else|except|False|finally|for|from|global|if|import|in|is|lambda|None|nonlocal|not|or|pass|raise|return|True|try|while|with|yield"
const NUMBER = String.raw`\b(?:0x[\da-fA-F]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b`
const QUOTED = String.raw`"(?:\\.|[^"\\\n])*"`
const PYTHON = [
  String.raw`#.*`,
  String.raw`"""[^]*?"""|'''[^]*?'''|${QUOTED}|'(?:\\.|[^'\\\n])*'`,
  String.raw`\b(?:${WORDS})\b`,
  NUMBER,
  String.raw`(?<=\bdef )\w+|@[\w.]+|\b[A-Za-z_]\w*(?=\()`,
]
const MLIR = [
  String.raw`//.*`,
  String.raw`"[^"\n]*"|(?<![a-wyz\d_%])(?:bf|f|i|ui)\d+\b|\b(?:tensor|vector|memref|index)\b|!\w+\.\w+`,
  String.raw`(?<![\w%#!.])(?:[a-z]\w*\.)+\w+|\b(?:module|attributes|public|private|noinline)\b`,
  String.raw`(?<![\w%#.])-?(?:0x[\da-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?:x\d+)*x?)`,
  String.raw`[#@][\w$.-]+`,
]
const CPP = [
  String.raw`//.*|/\*[^]*?\*/`,
  QUOTED,
  String.raw`\b(?:__\w+__|asm|auto|bool|break|case|char|class|const|constexpr|continue|do|double|else|extern|false|float|for|if|inline|int|int32_t|int64_t|long|namespace|new|nullptr|return|sizeof|static|static_cast|struct|switch|template|true|typename|unsigned|using|void|volatile|while)\b`,
  String.raw`\b(?:0x[\da-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?)[ful]*\b`,
  String.raw`^[ \t]*#\w+|\b[A-Za-z_]\w*(?=\()`,
]
const FORMS = {
  python: PYTHON,
  triton: PYTHON,
  graph: PYTHON,
  ttir: MLIR,
  ttgir: MLIR,
  ptx: [
    String.raw`//.*|/\*[^]*?\*/`,
    String.raw`"[^"\n]*"|@!?%p\d+`,
    String.raw`(?<=^[ \t{]*(?:@!?%p\d+[ \t]+)?)[a-z][\w.:]*(?=[ \t;])`,
    String.raw`(?<![\w%$.])-?(?:0[xfdFD][\da-fA-F]+|\d+(?:\.\d+)?)\b`,
    String.raw`(?<![\w.])\.[a-z]\w*|^\$?\w+:|\$L\w+`,
  ],
  sass: [
    String.raw`/\*[^]*?\*/|//.*`,
    String.raw`@!?U?P\w+`,
    String.raw`(?<=^[ \t]+(?:@!?U?P\w+[ \t]+)?)[A-Z][\w.]*`,
    String.raw`(?<![\w.])-?(?:0x[\da-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?)\b`,
    String.raw`\.L_\w+|^[.\w$]+:|\bSR_[\w.]+`,
  ],
  amdgcn: [
    String.raw`;.*|//.*`,
    QUOTED,
    String.raw`(?<=^[ \t]+)[a-z]\w*`,
    String.raw`(?<![\w.[:])-?(?:0x[\da-f]+|\d+(?:\.\d+)?)\b`,
    String.raw`^[.\w$]+:|(?<![\w.])\.[A-Za-z]\w*`,
  ],
  cpp: CPP,
  cuda: CPP,
}
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" }
const escaped = (text) => text.replace(/[&<>]/g, (sign) => ENTITIES[sign])

// HTML with as many lines as the text: what spans lines, such as a docstring, is wrapped in each of them.
function highlighted(text, form) {
  if (!FORMS[form]) return escaped(text)
  let [html, at] = ["", 0]
  for (const match of text.matchAll(new RegExp(`(${FORMS[form].join(")|(")})`, "gm"))) {
    const open = `<span class="rp-code-${KINDS[match.indexOf(match[0], 1) - 1]}">`
    html += escaped(text.slice(at, match.index)) + open + escaped(match[0]).replaceAll("\n", `</span>\n${open}`) + "</span>"
    at = match.index + match[0].length
  }
  return html + escaped(text.slice(at))
}

// ---- a listing: the HTML of its lines, and which of them came from which line of the source ----

function parsed(text, form, isSource) {
  const lines = text.trimEnd().split("\n").map((line) => (isSource && MARKER.test(line) ? "" : line))
  const from = lines.map((line, at) => (isSource ? at + 1 : Number(ORIGIN.exec(line)?.[1] ?? 0)))
  const plain = isSource ? lines : lines.map((line) => line.replace(ORIGIN, ""))
  const places = new Map()
  for (const [at, line] of from.entries()) {
    if (!places.has(line)) places.set(line, [])
    places.get(line).push(at)
  }
  places.delete(0) // what came from no line
  const code = highlighted(plain.join("\n"), form).split("\n")
  const rows = plain.map((line, at) => {
    const name = line.trim() ? "" : ' aria-label="empty"'
    return `<div role="option" aria-selected="false"${name}><i data-at="${at + 1}" data-beside="${isSource ? "" : from[at] || ""}"></i>${code[at]}\n</div>`
  })
  return { html: chunked(rows), from, places, columns: Math.max(...plain.map((line) => line.length)), plain }
}

function chunked(rows) {
  const starts = rows.map((_, at) => at).filter((at) => at % CHUNK === 0)
  const chunks = starts.map((at) => rows.slice(at, at + CHUNK))
  return chunks.map((chunk) => `<div class="rp-viewer__chunk" style="--lines: ${chunk.length}">${chunk.join("")}</div>`).join("")
}

// Each address is asked for once, and again after a failure.
const answers = new Map()
function load(url) {
  if (!answers.has(url)) {
    const answer = fetch(url).then((got) => (got.ok ? got.text() : Promise.reject(new Error(`answer ${got.status}`))))
    answers.set(url, answer)
    answer.catch(() => answers.delete(url))
  }
  return answers.get(url)
}

// ---- the dialog ----

const paneFrame = (side) => `
  <section class="rp-viewer__pane" aria-label="The ${side} pane">
    <div class="rp-viewer__head">
      <label><span>Kernel</span> <select name="kernel"></select></label>
      <label><span>Form</span> <select name="form"></select></label>
    </div>
    <div class="rp-viewer__listing" role="listbox" tabindex="0" ${side === SIDES[0] ? "autofocus" : ""}></div>
    <div class="rp-viewer__ruler" aria-hidden="true"></div>
  </section>`
const FRAME = `
  <header>
    <h2 id="rp-viewer-title"><span></span> <small></small></h2>
    <label><span>Configuration</span> <select name="configuration"></select></label>
    <label><span>Target</span> <select name="target"></select></label>
    <button type="button" class="rp-viewer__close" aria-label="Close">×</button>
  </header>
  <div class="rp-viewer__facts" role="radiogroup" aria-label="Facts, each with why it matters"></div>
  <p class="rp-viewer__why" aria-live="polite"></p>
  <details class="rp-viewer__notes"><summary>Notes</summary><div></div></details>
  <div class="rp-viewer__panes">${SIDES.map(paneFrame).join("")}</div>
  <footer>
    <p role="status"></p>
    <p class="rp-viewer__help">A click or <kbd>Enter</kbd> pins a line, <kbd>Esc</kbd> lets go. <kbd>↑</kbd> <kbd>↓</kbd> <kbd>PgUp</kbd> <kbd>PgDn</kbd>
      <kbd>Home</kbd> <kbd>End</kbd> move, <kbd>n</kbd> and <kbd>p</kbd> follow the links in the other pane.</p>
    <p class="rp-viewer__help rp-viewer__help--touch">Touch a line to see what it became.</p>
  </footer>`

let dialog, opener, base, index
let wish // what the reader chose: {configuration, target, panes: [{kernel, form}, {kernel, form}]}
let view // what of it there is
let panes = []
let pin // {kernel, line}: the line of the source that stays lit
let chosenFact

const part = (selector) => dialog.querySelector(selector)
const other = (pane) => panes[1 - panes.indexOf(pane)]

function makeDialog() {
  dialog = element("dialog", { className: "rp-viewer", innerHTML: FRAME })
  dialog.setAttribute("aria-labelledby", "rp-viewer-title")
  part("details").open = innerWidth > 900 && innerHeight > 700
  panes = [...dialog.querySelectorAll(".rp-viewer__pane")].map(makePane)
  for (const select of dialog.querySelectorAll("header select")) {
    select.addEventListener("change", () => {
      wish[select.name] = select.value
      update()
    })
  }
  part(".rp-viewer__close").addEventListener("click", () => dialog.close())
  dialog.addEventListener("keydown", onKeyOfDialog)
  dialog.addEventListener("close", onClose)
  document.body.append(dialog)
}

function makePane(box, side) {
  const pane = { box, side, listing: box.querySelector("[role=listbox]"), ruler: box.querySelector(".rp-viewer__ruler") }
  empty(pane)
  for (const select of box.querySelectorAll("select")) {
    select.addEventListener("change", () => {
      if (select.name === "kernel" && !side && view.panes[0].kernel === view.panes[1].kernel) wish.panes[1].kernel = select.value // both go on
      wish.panes[side][select.name] = select.value
      update()
    })
  }
  pane.listing.addEventListener("pointerover", (event) => pointed(pane, event))
  pane.listing.addEventListener("pointerleave", () => pin || light())
  pane.listing.addEventListener("click", (event) => pressed(pane, event))
  pane.listing.addEventListener("keydown", (event) => onKeyOfPane(pane, event))
  return pane
}

function empty(pane, key = "") {
  Object.assign(pane, { key, rows: [], from: [], places: new Map(), lit: [], at: 0 })
  pane.listing.removeAttribute("aria-activedescendant")
}

function onClose() {
  document.documentElement.classList.remove("rp-viewing")
  for (const pane of panes) {
    empty(pane)
    pane.listing.replaceChildren()
  }
  pin = view = undefined
  if (!location.hash.startsWith(PREFIX)) return // it led to another place of the page
  history.replaceState(history.state, "", location.pathname + location.search)
  if (dialog.contains(document.activeElement) || document.activeElement === document.body) opener.focus() // an address opened it
}

// The page has keys of its own, of which n and p turn pages: while the viewer is open they get none.
function onKeyOfDialog(event) {
  event.stopPropagation()
  if (event.key !== "Escape" || !pin) return
  event.preventDefault()
  unpin()
}

// ---- what is shown ----

// The one of that key, else the first.
const pick = (all, key, value) => all.find((one) => one[key] === value) ?? all[0]

// What of the wish there is. A part that there is not falls back to its default, and is kept for where there is one.
function settled() {
  const configuration = pick(index.configurations, "id", wish.configuration)
  const targets = Object.keys(index.targets).filter((target) => configuration.kernels.some((kernel) => kernel.targets[target]))
  const target = [wish.target, PREFERRED].find((one) => targets.includes(one)) ?? targets[0]
  const kernels = configuration.kernels.filter((kernel) => kernel.targets[target])
  return { configuration, targets, target, kernels, panes: wish.panes.map((one, side) => settledPane(one, side, kernels, target)) }
}

function settledPane({ kernel: name, form: wished }, side, kernels, target) {
  const kernel = pick(kernels, "name", name)
  const { source } = kernel
  const urls = { [source.form]: source.url, ...kernel.targets[target].forms }
  const forms = [source.form, ...Object.keys(index.forms).filter((form) => form !== source.form && urls[form])]
  const machine = MACHINE.find((form) => urls[form]) ?? forms.at(-1)
  const instead = MACHINE.includes(wished) || side ? machine : source.form
  const form = forms.includes(wished) ? wished : instead
  return { kernel, forms, form, url: new URL(urls[form], base).href, isSource: form === source.form }
}

function update() {
  view = settled()
  if (!view.panes.some(({ kernel }) => kernel.name === pin?.kernel)) pin = undefined
  if (!pin) light()
  fill(part("[name=configuration]"), index.configurations.map(({ id, label }) => [id, label]), view.configuration.id)
  fill(part("[name=target]"), view.targets.map((target) => [target, `${target}: ${index.targets[target]}`]), view.target)
  const names = view.kernels.map(({ name, maker }) => [name, maker ? `${maker}: ${name}` : name])
  for (const [side, { kernel, forms, form }] of view.panes.entries()) {
    const [kernelSelect, formSelect] = panes[side].box.querySelectorAll("select")
    fill(kernelSelect, names, kernel.name)
    kernelSelect.parentElement.hidden = names.length < 2
    fill(formSelect, forms.map((one) => [one, index.forms[one]]), form)
  }
  showFacts()
  for (const pane of panes) show(pane)
  writeAddress()
}

function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value, false, value === chosen)))
}

function showFacts() {
  const kernels = [...new Set(view.panes.map(({ kernel }) => kernel))]
  const built = kernels.map((kernel) => kernel.targets[view.target])
  const known = index.facts.filter(({ key }) => built.some(({ values }) => key in values))
  const worst = known.find(({ key }) => built.some(({ bad }) => bad.includes(key)))
  const chosen = known.find(({ key }) => key === chosenFact) ?? worst ?? known[0]
  part(".rp-viewer__facts").replaceChildren(...known.map((fact) => factCard(fact, built, fact === chosen)))
  part(".rp-viewer__why").textContent = chosen?.why ?? ""
  part(".rp-viewer__notes > div").replaceChildren(...kernels.map(notesOf))
}

// A choice of one fact: its value for each of the kernels on show.
function factCard({ key, title, why }, built, isChosen) {
  const input = element("input", { type: "radio", name: "rp-fact", value: key, checked: isChosen })
  input.addEventListener("change", () => {
    chosenFact = key
    part(".rp-viewer__why").textContent = why
  })
  const values = built.map(({ values, bad }, side) => {
    const whose = built.length > 1 ? [element("small", {}, SIDES[side]), " "] : []
    return element("b", { className: bad.includes(key) ? "rp-bad" : "" }, ...whose, values[key] ?? "–")
  })
  return element("label", {}, input, element("span", {}, title), " ", ...values)
}

function notesOf(kernel) {
  const { options, notes } = kernel.targets[view.target]
  const said = [options && `${options}.`, ...notes, kernel.provenance].filter(Boolean)
  return element("p", {}, element("code", {}, kernel.name), `: ${said.join(" ")}`)
}

async function show(pane) {
  const { kernel, form, url, isSource } = view.panes[pane.side]
  const key = `${kernel.name} ${url}`
  pane.listing.ariaLabel = `${index.forms[form]} of ${kernel.name}`
  if (pane.key === key) return settle(pane)
  empty(pane, key)
  pane.listing.ariaBusy = "true"
  const text = await load(url).catch((error) => failed(pane, key, url, error))
  if (pane.key !== key || text === undefined) return // another choice was quicker, or it failed
  const { html, from, places, columns, plain } = parsed(text, form, isSource)
  pane.listing.style.setProperty("--columns", columns)
  pane.listing.innerHTML = html
  Object.assign(pane, { from, places, rows: [...pane.listing.querySelectorAll("[role=option]")] })
  pane.listing.ariaBusy = "false"
  pane.listing.scrollLeft = 0
  if (isSource && pin?.kernel === kernel.name && !places.has(pin.line)) unpin() // an address of no line
  settle(pane, isSource ? firstLoad(plain, kernel.source) : 0)
}

// Where a kernel's work begins, after its signature and its addresses: the first load, or call of a function that loads.
function firstLoad(lines, { line, last }) {
  const bodies = lines.join("\n").split(/^def (?=\w)/m).slice(1)
  let loads = LOAD
  for (let known = 0, names = []; ; known = names.length) {
    names = bodies.filter((body) => loads.test(body.slice(body.indexOf("(")))).map((body) => /\w+/.exec(body)[0])
    loads = new RegExp(`${LOAD.source}|(?<!def )\\b(?:${names.join("|") || "(?!)"})\\(`)
    if (names.length === known) break
  }
  return line - 1 + Math.max(0, lines.slice(line - 1, last).findIndex((each) => loads.test(each)))
}

function failed(pane, key, url, error) {
  if (pane.key !== key) return
  const link = element("a", { href: url }, url)
  pane.listing.replaceChildren(element("p", { className: "rp-viewer__failed" }, "This could not be loaded (", error.message, "): ", link))
  pane.listing.ariaBusy = "false"
  countBeside(other(pane))
  say(`${pane.listing.ariaLabel} could not be loaded.`)
}

// What depends on the other pane or on the pin, once a pane has its lines; a new listing starts at a line.
function settle(pane, start) {
  for (const each of panes) countBeside(each)
  if (start !== undefined) {
    pane.listing.scrollTop = start * height(pane)
    setCurrent(pane, start)
  }
  if (!pin) return
  light(pin.kernel, pin.line)
  bringLit(pane)
}

// Beside a line of the source: how many lines of the other pane came from it.
function countBeside(pane) {
  const [mine, theirs] = [view.panes[pane.side], view.panes[1 - pane.side]]
  if (!mine.isSource) return
  const places = mine.kernel === theirs.kernel && !theirs.isSource ? other(pane).places : new Map()
  for (const [at, row] of pane.rows.entries()) row.firstChild.dataset.beside = places.has(at + 1) ? `${places.get(at + 1).length}×` : ""
}

// ---- light ----

const kernelOf = (pane) => view.panes[pane.side].kernel.name

// Lights in both panes what is linked to a line of a kernel's source: to 0 nothing is.
function light(kernel, line) {
  for (const pane of panes) {
    for (const row of pane.lit) relight(row, false)
    const places = (kernel && kernel === kernelOf(pane) && pane.places.get(line)) || []
    pane.lit = places.map((at) => pane.rows[at])
    for (const row of pane.lit) relight(row, true)
    mark(pane, places)
  }
  dialog.classList.toggle("rp-pinned", Boolean(pin))
  say(kernel ? told(kernel, line) : "")
}

function relight(row, on) {
  row.classList.toggle("rp-lit", on)
  row.ariaSelected = String(on && Boolean(pin))
}

function say(text) {
  part("[role=status]").textContent = text
}

function told(kernel, line) {
  if (!line) return "This comes from no line of the source."
  const counts = panes.flatMap((pane) => {
    const { form, isSource } = view.panes[pane.side]
    if (kernel !== kernelOf(pane) || isSource) return []
    const [count, unit] = [pane.lit.length, UNITS[form] ?? "instructions"]
    return `${count || "no"} ${count === 1 ? unit.slice(0, -1) : unit} of ${index.forms[form]}`
  })
  return [`line ${line}`, counts.join(", ")].filter(Boolean).join(": ")
}

// Where in the whole listing the lit lines are.
function mark(pane, places) {
  const total = Math.max(pane.rows.length, pane.listing.clientHeight / height(pane))
  const marks = [...new Set(places.map((at) => Math.floor((at / total) * MARKS)))].map((at) => [(at * 100) / MARKS, ((at + 1) * 100) / MARKS])
  const stops = marks.map(([from, to]) => `transparent ${from}%, var(--rp-accent) ${from}% ${to}%, transparent ${to}%`)
  pane.ruler.style.background = stops.length ? `linear-gradient(${stops})` : ""
}

function setPin(pane, at) {
  const line = pane.from[at]
  if (pin?.kernel === kernelOf(pane) && pin.line === line) return unpin()
  pin = line ? { kernel: kernelOf(pane), line } : undefined
  light(kernelOf(pane), line)
  bringLit(other(pane))
  writeAddress()
}

function unpin() {
  pin = undefined
  light()
  writeAddress()
}

// ---- moving ----

const height = (pane) => parseFloat(getComputedStyle(pane.listing).lineHeight)

// The lines in sight, first and last.
function sight({ listing }, row = height({ listing })) {
  return [Math.ceil(listing.scrollTop / row), Math.floor((listing.scrollTop + listing.clientHeight) / row) - 1]
}

const litPlaces = (pane) => pane.lit.map((row) => placeOf(pane, row))

function setCurrent(pane, at) {
  pane.rows[pane.at]?.classList.remove("rp-current")
  pane.at = Math.max(0, Math.min(at, pane.rows.length - 1))
  const row = pane.rows[pane.at]
  row.classList.add("rp-current")
  row.id = `rp-line-${pane.side}-${pane.at}`
  pane.listing.setAttribute("aria-activedescendant", row.id)
}

// Scrolls to a line that is out of sight: a step brings it just in, a leap to where one sees what is around it.
function reveal(pane, at, isStep = false) {
  const [row, [first, last], visible] = [height(pane), sight(pane), pane.listing.clientHeight]
  if (at >= first && at <= last) return
  const above = isStep ? (at < first ? 0 : visible - row) : visible / 3
  pane.listing.scrollTop = at * row - above
}

// Brings the first lit line of a pane into sight, unless one is.
function bringLit(pane) {
  const [first, last] = sight(pane)
  const places = litPlaces(pane)
  if (!places.length || places.some((at) => at >= first && at <= last)) return
  setCurrent(pane, places[0])
  reveal(pane, places[0])
}

function move(pane, to) {
  setCurrent(pane, to)
  reveal(pane, pane.at, true)
  if (!pin) light(kernelOf(pane), pane.from[pane.at])
}

// To the next or the previous linked line of the other pane, around its ends.
function hop(pane, step) {
  if (!pane.lit.length) light(kernelOf(pane), pane.from[pane.at])
  const there = other(pane)
  const places = litPlaces(there)
  if (!places.length) return
  const after = places.findIndex((at) => (step > 0 ? at > there.at : at >= there.at))
  const next = step > 0 ? Math.max(after, 0) : (after < 1 ? places.length : after) - 1
  setCurrent(there, places[next])
  reveal(there, there.at)
  say(`${told(kernelOf(there), there.from[there.at])}; this is number ${next + 1}`)
}

// The line that an element is in, counted from 0; -1 if it is in none.
function placeOf(pane, element) {
  return Number(element.closest("[role=option]")?.firstChild.dataset.at ?? 0) - 1
}

function pointed(pane, event) {
  const at = placeOf(pane, event.target)
  if (!pin && at >= 0) light(kernelOf(pane), pane.from[at])
}

function pressed(pane, event) {
  const at = placeOf(pane, event.target)
  if (at < 0 || !getSelection().isCollapsed) return // who selects text wants the text
  setCurrent(pane, at)
  setPin(pane, at)
}

function onKeyOfPane(pane, event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !pane.rows.length) return
  const [first, last] = sight(pane)
  const from = pane.at < first || pane.at > last ? first : pane.at // who scrolled goes on from there
  const page = Math.max(1, last - first)
  const moves = { ArrowUp: from - 1, ArrowDown: from + 1, PageUp: from - page, PageDown: from + page, Home: 0, End: Infinity }
  const deeds = { Enter: () => setPin(pane, pane.at), n: () => hop(pane, 1), p: () => hop(pane, -1) }
  if (event.key in moves) move(pane, moves[event.key])
  else if (event.key in deeds) deeds[event.key]()
  else return
  event.preventDefault()
}

// ---- the address: #compiled/<configuration>/<kernel>/<target>/<left form>/<right form>/L<line> ----

// Where the right pane shows another kernel than the left one, its form is <form>@<kernel>.
function writeAddress() {
  const [left, right] = view.panes
  const beside = right.kernel === left.kernel ? right.form : `${right.form}@${right.kernel.name}`
  const parts = [view.configuration.id, left.kernel.name, view.target, left.form, beside]
  if (pin?.kernel === left.kernel.name) parts.push(`L${pin.line}`)
  history.replaceState(history.state, "", PREFIX + parts.map((part) => encodeURIComponent(part).replaceAll("%40", "@")).join("/"))
}

function readAddress(hash) {
  let parts = []
  try {
    parts = hash.slice(PREFIX.length).split("/").map(decodeURIComponent)
  } catch {} // not one that we wrote
  const [configuration, kernel, target, left, beside = "", line = ""] = parts
  const [right, rightKernel = kernel] = beside.split("@")
  wish = { configuration, target, panes: [{ kernel, form: left }, { kernel: rightKernel, form: right }] }
  return Number(/^L(\d+)$/.exec(line)?.[1] ?? 0)
}

// ---- opening ----

async function open(link, hash = PREFIX) {
  if (!dialog) makeDialog()
  const line = readAddress(hash)
  opener = link
  base = new URL(link.dataset.explorer, document.baseURI).href
  if (!dialog.open) dialog.showModal()
  document.documentElement.classList.add("rp-viewing")
  index = await load(base).then(JSON.parse).catch(failedWhole)
  if (!index || !dialog.open) return
  part("h2 span").textContent = index.title
  part("h2 small").textContent = index.made
  pin = line ? { kernel: settled().panes[0].kernel.name, line } : undefined
  update()
}

function failedWhole(error) {
  const link = element("a", { href: opener.href }, "All facts and listings")
  part("h2 span").textContent = "Compiled code"
  panes[0].listing.replaceChildren(element("p", { className: "rp-viewer__failed" }, `${base} could not be loaded (${error.message}). `, link, " are on a page of their own."))
}

function openAt() {
  const link = document.querySelector("a[data-explorer]")
  if (link && location.hash.startsWith(PREFIX)) open(link, location.hash)
  else if (dialog?.open) dialog.close()
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-explorer]")
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return
  event.preventDefault()
  open(link)
})
addEventListener("hashchange", openAt)
openAt()
