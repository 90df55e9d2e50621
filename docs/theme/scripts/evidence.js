import { button, copy, element } from "./code.js"

// A number's evidence opens in a sheet at the side, below on a phone; without scripts the number is a link to the machine's page.

const source = document.getElementById("rp-evidence")
const evidence = source ? JSON.parse(source.textContent) : {}

const FACTS = [
  ["meaning", "What it is"],
  ["runs", "Each run"],
  ["formula", "Formula"],
  ["inputs", "Inputs"],
  ["again", "Measure it"],
  ["command", "The run"],
  ["machine", "Machine"],
  ["software", "Software"],
  ["date", "Date"],
  ["spread", "Spread"],
  ["note", "Note"],
  ["stale", "Stale"],
  ["busy", "Busy"],
]
const CODE = new Set(["command", "formula"])

function link(text, href) {
  return element("a", { href }, text)
}

function input({ name, value, source, url }) {
  const from = source ? [", ", url ? link(source, url) : source] : []
  return element("li", {}, element("code", {}, name), ` = ${value}`, ...from)
}

function run({ date, value, host }) {
  return element("li", {}, [value, date, host].filter(Boolean).join(", "))
}

function command(text) {
  const made = button("Copy", "Copy this command")
  made.addEventListener("click", () => copy(made, () => text))
  return element("pre", {}, element("code", {}, text), made)
}

// What a fact holds, as a node or text.
function shown(key, value) {
  if (key === "stale") return `The ${value} has changed since.`
  if (key === "runs") return element("ul", {}, ...value.map(run))
  if (key === "inputs") return element("ul", {}, ...value.map(input))
  if (key === "date") return value.replace("T", " ").replace(/:\d\dZ$/, " UTC")
  if (key === "again") return command(value)
  return CODE.has(key) ? element("code", {}, value) : value
}

function fill(dialog, entry, href) {
  const facts = FACTS.filter(([key]) => entry[key]).flatMap(([key, name]) => [element("dt", {}, name), element("dd", {}, shown(key, entry[key]))])
  const links = [
    entry.machine && href !== entry.download_url && link("Its row among all numbers", href), // a number that a script printed has none
    entry.source_url && link("Source", entry.source_url),
    entry.download_url && link("Download the record", entry.download_url),
  ].filter(Boolean)
  const close = element("button", { type: "button", className: "rp-evidence__close", ariaLabel: "Close", autofocus: true }, "×")
  close.addEventListener("click", () => dialog.close())
  dialog.firstChild.replaceChildren(
    element("h2", { className: "rp-evidence__label", id: "rp-evidence-label" }, entry.about ? entry.label.split(": ")[0] : entry.label),
    element("p", { className: "rp-evidence__value" }, entry.value),
    ...(entry.about ? [element("p", { className: "rp-evidence__about" }, entry.about)] : []),
    element("dl", {}, ...facts),
    element("p", { className: "rp-evidence__links" }, ...links),
    close,
  )
}

function makeDialog() {
  const dialog = element("dialog", { className: "rp-evidence" }, element("div", { className: "rp-evidence__inner md-typeset" }))
  dialog.setAttribute("aria-labelledby", "rp-evidence-label")
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()) // the backdrop
  document.body.append(dialog)
  return dialog
}

let dialog
document.addEventListener("click", (event) => {
  const number = event.target.closest?.("a.rp-number[data-evidence]")
  const entry = number && evidence[number.dataset.evidence]
  if (!entry || event.ctrlKey || event.metaKey || event.shiftKey) return
  event.preventDefault()
  dialog ??= makeDialog()
  fill(dialog, entry, number.href)
  dialog.showModal() // focus comes back to the number when it closes
})
