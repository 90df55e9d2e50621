// Long tables of numbers: a field that leaves the lines which have all of its words, in their cells or above the table.

import { element } from "./code.js"

const groups = [...document.querySelectorAll(".rp-group")]
const lines = groups.flatMap((group) => {
  const above = group.querySelector("p").textContent
  return [...group.querySelectorAll("tbody tr")].map((row) => ({ row, text: `${above} ${row.textContent}`.toLowerCase().replaceAll("\u00a0", " ") }))
})

const field = element("input", { type: "search", placeholder: "ours forward bfloat16 4096" })
const said = element("output")
groups[0].before(element("label", { className: "rp-filter" }, "Filter", field, said))

field.addEventListener("input", () => {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean)
  for (const { row, text } of lines) row.hidden = !words.every((word) => text.includes(word))
  for (const group of groups) group.hidden = !group.querySelector("tbody tr:not([hidden])")
  said.textContent = words.length ? `${lines.filter(({ row }) => !row.hidden).length} of ${lines.length} lines` : ""
})

// A link to a line: its table comes into sight as a whole, and the line stands below the table's head.
function land() {
  const row = document.querySelector(".rp-grid tr:target")
  if (!row) return
  const box = row.closest(".rp-grid")
  box.scrollTop = row.offsetTop - box.querySelector("thead").offsetHeight - row.offsetHeight
  box.scrollIntoView({ block: "start" })
}
addEventListener("hashchange", land)
addEventListener("load", () => document.fonts.ready.then(() => requestAnimationFrame(land))) // after the browser has scrolled
