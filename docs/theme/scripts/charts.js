// Charts are static SVG. The first touch of one loads Vega and puts the same drawing, with tooltips, in its place.
// A chooser switches every chart of the page to a machine, and the next pages remember it.

const REMEMBERED = "rp-machine"
const figures = [...document.querySelectorAll(".rp-chart")]

// ---- interactive ----

let vega
const library = () => (vega ??= import(new URL("../assets/vega.js", import.meta.url)))

async function enliven(plot) {
  const spec = JSON.parse(plot.nextElementSibling.textContent)
  await library() // sets window.vegaEmbed
  const stage = document.createElement("div")
  stage.ariaHidden = "true" // the plot around it is the named image
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
    const select = figure.querySelector(".rp-machine select")
    if (select) select.value = machine
  }
}

function chooser(figure) {
  const label = document.createElement("label")
  label.className = "rp-machine"
  const select = document.createElement("select")
  for (const { dataset } of panels(figure)) select.add(new Option(dataset.name, dataset.machine))
  select.addEventListener("change", () => {
    localStorage.setItem(REMEMBERED, select.value)
    choose(select.value)
  })
  label.append("Machine", select)
  figure.prepend(label)
}

for (const figure of figures) if (panels(figure).length > 1) chooser(figure)
const remembered = localStorage.getItem(REMEMBERED)
if (remembered) choose(remembered)
