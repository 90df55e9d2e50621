// What all calculators share: the words for numbers, and a form that computes anew with each key.
// docs/publish/macros/calculators/form.py makes the form and the data.

// ---- words ----

export const digits = (value) => value.toLocaleString("en", { minimumSignificantDigits: 3, maximumSignificantDigits: 3 })
export const percent = (part, digits) => part.toLocaleString("en", { style: "percent", minimumSignificantDigits: digits, maximumSignificantDigits: digits })
export const bytesOf = (value) => inUnits(value, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "KB"]])
export const time = (value) => inUnits(value, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]])

export function inUnits(value, units) {
  const [scale, name] = units.find(([scale]) => value >= 0.9995 * scale) ?? units.at(-1)
  return `${digits(value / scale)} ${name}`
}

// ---- the form ----

// What is wrong with the first field that cannot be read; nothing if all can.
export function invalid(form) {
  const field = [...form.elements].find((each) => each.willValidate && !each.validity.valid)
  return field ? `${field.labels[0].firstChild.textContent}: ${field.validationMessage}` : ""
}

function show(form, texts) {
  for (const cell of form.querySelectorAll("[data-row]")) {
    const text = texts[cell.dataset.row] || "–"
    if (cell.textContent !== text) cell.textContent = text // so that what stays the same is not read out again
  }
}

function ask(form) {
  for (const label of form.querySelectorAll("[data-when]")) {
    label.hidden = form.elements[label.dataset.when].value !== label.dataset.is
    label.control.disabled = label.hidden
  }
}

// begin(form, data): fill in what follows from other fields. rows(form, data): the texts of the results by name.
// follow(form, data, update): listen to what is outside of the form.
export function calculator(name, { begin, rows, follow = () => {} }) {
  for (const section of document.querySelectorAll(`[data-calculator="${name}"]`)) {
    const form = section.querySelector("form")
    const data = JSON.parse(section.querySelector("script").textContent)
    const update = () => (begin(form, data), ask(form), show(form, rows(form, data)))
    form.addEventListener("input", update)
    form.addEventListener("submit", (event) => event.preventDefault())
    update()
    follow(form, data, update)
    form.hidden = false
  }
}
