// A machine's page shows the rows of the cases that its address names (?rows=kernels-softmax) below the table of cases.
// They are in files of their own, to which the table links where there are no scripts.

import { element, reachable } from "./code.js"

const files = new Map()
const links = [...document.querySelectorAll("article a[href^='../../rows/']")]
for (const link of links) {
  const asked = link.pathname.match(/([^/]+)\.html$/)[1]
  files.set(asked, { href: link.href, name: link.textContent })
  link.href = `?rows=${asked}`
}

const sections = new URLSearchParams(location.search).getAll("rows").filter((asked) => files.has(asked)).map((asked) => {
  const section = element("section", { className: "rp-rows", ariaBusy: true }, element("p", {}, "Loading…"))
  return { section, ...files.get(asked) }
})
links[0].closest(".rp-scroll").after(...sections.map(({ section }) => section))
document.querySelector(".md-sidebar--primary").hidden = sections.length > 0 // as the tables need its room

async function load({ section, href, name }) {
  try {
    const answer = await fetch(href)
    if (!answer.ok) throw new Error(answer.status)
    const file = new DOMParser().parseFromString(await answer.text(), "text/html")
    section.replaceChildren(...file.body.childNodes)
    filter([...section.querySelectorAll(".rp-group")])
  } catch {
    section.replaceChildren(element("p", { role: "alert" }, `The rows of ${name} cannot be loaded here. They are in `, element("a", { href }, "a file of their own"), "."))
  }
  section.ariaBusy = false
}

// A field that leaves the lines which have all of its words, in their cells or above the table.
function filter(groups) {
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
}

// A link to a line: its table comes into sight as a whole, and the line stands below the table's head.
function land() {
  const target = document.querySelector(":target") ?? sections[0]?.section
  const box = target?.closest(".rp-grid")
  if (box) box.scrollTop = target.offsetTop - box.querySelector("thead").offsetHeight - target.offsetHeight
  ;(box ?? target)?.scrollIntoView()
}
addEventListener("hashchange", land)

const whole = new Promise((done) => addEventListener("load", done)) // until then the browser scrolls, too
await Promise.all([whole, document.fonts.ready, ...sections.map(load)])
reachable()
if (location.hash) location.replace(location.hash) // the line was not there before
requestAnimationFrame(land)
