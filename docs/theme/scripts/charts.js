// Charts are static SVG. The first touch of one loads Vega and puts the same drawing, with tooltips, in its place.
// One chooser switches all charts and tables of the page to a machine, and the next pages remember it.

import { element } from "./code.js"

const REMEMBERED = "rp-machine"
const figures = [...document.querySelectorAll(".rp-chart")]

// ---- interactive ----

let vega
const library = () => (vega ??= import(new URL("../assets/vega.js", import.meta.url)))

async function enliven(plot) {
  const spec = JSON.parse(plot.nextElementSibling.textContent)
  await library() // sets window.vegaEmbed
  const stage = element("div", { ariaHidden: "true" }) // the plot around it is the named image
  await window.vegaEmbed(stage, spec, { renderer: "svg", actions: false, defaultStyle: false, tooltip: { theme: "rp", disableDefaultStyle: true } })
  plot.querySelector("svg").replaceWith(stage)
  plot.dataset.live = ""
}

function touch(event) {
  const plot = event.currentTarget
  for (const type of ["pointerenter", "pointerdown", "focus"]) plot.removeEventListener(type, touch)
  enliven(plot).catch((error) => console.warn("This chart stays static:", error))
}

for (const plot of document.querySelectorAll(".rp-chart__plot")) {
  for (const type of ["pointerenter", "pointerdown", "focus"]) plot.addEventListener(type, touch)
}

// ---- machines ----

const panels = (figure) => [...figure.querySelectorAll(".rp-chart__panel")]

function choose(machine) {
  for (const figure of figures) {
    const its = panels(figure)
    if (!its.some((panel) => panel.dataset.machine === machine)) continue
    for (const panel of its) panel.classList.toggle("rp-shown", panel.dataset.machine === machine)
  }
  const select = document.querySelector(".rp-machine select")
  if ([...(select?.options ?? [])].some(({ value }) => value === machine)) select.value = machine
}

// Before the first of the figures that have a choice, and in sight while one of them is.
function chooser(figures) {
  const select = element("select")
  const known = new Map(figures.flatMap(panels).map(({ dataset }) => [dataset.machine, dataset.name]))
  for (const [machine, name] of known) select.add(new Option(name, machine))
  select.addEventListener("change", () => {
    localStorage.setItem(REMEMBERED, select.value)
    choose(select.value)
  })
  figures[0].before(element("label", { className: "rp-machine" }, "Machine", select))
}

const choices = figures.filter((figure) => panels(figure).length > 1)
if (choices.length) chooser(choices)
const remembered = localStorage.getItem(REMEMBERED)
if (remembered) choose(remembered)
