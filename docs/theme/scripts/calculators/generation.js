// The calculator of a decoding step: bytes, the time to read them, and what to expect by the steps that were measured.
// docs/publish/macros/calculators/generation.py makes the form and the data. The rule is on the page: nothing is extrapolated.

import { bytesOf, calculator, digits, invalid, percent, time } from "./form.js"

// Bytes of a row of so many numbers, with its scales: fp32, one a row, or of int4 one for each 128 columns.
const ROW = { bf16: (n) => 2 * n, int8: (n) => n + 4, fp8: (n) => n + 4, int4: (n) => n / 2 + (4 * n) / 128 }
const AXES = ["shape", "batch", "context"]
const WITHIN = ["layers", "width"] // how many kernels a step has, and how large they are

// What a step reads: all matrices and norms, and the cache up to the token; of the embedding one row, which is not counted.
export function read({ layers, width, inner, heads, shared, vocabulary }, dtype, batch, context) {
  const kv = (width / heads) * shared
  const row = ROW[dtype]
  const layer = (2 * width + 2 * kv + 2 * inner) * row(width) + width * row(inner)
  return { weights: layers * layer + vocabulary * row(width) + 2 * (2 * layers + 1) * width, cache: 4 * batch * layers * kv * (context + 1) }
}

const total = ({ weights, cache }) => weights + cache
const key = (sizes) => Object.values(sizes).join()

// The points of a machine that ran this way with these weights, as a step that is asked for: shape, batch, context, bytes.
export function measured({ models, machines }, slug, way, dtype) {
  const points = machines.find((each) => each.slug === slug)?.points ?? []
  return points.filter((point) => point.way === way && point.dtype === dtype).map((point) => {
    const sizes = models[point.model]
    return { ...point, sizes, shape: key(sizes), bytes: total(read(sizes, dtype, point.batch, point.context)) }
  })
}

// Seconds of a step and the error as a part of them; nothing outside of what was measured. A measured step is itself. Any
// other stands between two that differ from it along one axis: time is a line in bytes, the error covers both shares.
export function expected(points, asked) {
  const found = points.find((point) => AXES.every((axis) => point[axis] === asked[axis]))
  if (found) return { seconds: found.seconds, error: found.spread, of: [found] }
  for (const free of AXES) {
    const line = points.filter((point) => AXES.every((axis) => axis === free || point[axis] === asked[axis])).sort((a, b) => a.bytes - b.bytes)
    const at = line.findIndex(({ bytes }) => bytes > asked.bytes)
    if (at > 0 && between(asked, line[at - 1], line[at])) return along(asked, line[at - 1], line[at])
  }
}

function between({ sizes }, ...ends) {
  return WITHIN.every((name) => {
    const both = ends.map((end) => end.sizes[name])
    return sizes[name] >= Math.min(...both) && sizes[name] <= Math.max(...both)
  })
}

function along(asked, less, more) {
  const part = (asked.bytes - less.bytes) / (more.bytes - less.bytes)
  const seconds = less.seconds + part * (more.seconds - less.seconds)
  const rates = [less, more].map(({ bytes, seconds }) => bytes / seconds)
  const gap = Math.abs(rates[0] - rates[1]) / (asked.bytes / seconds)
  return { seconds, error: gap + Math.max(less.spread, more.spread), of: [less, more] }
}

// ---- words ----

const tokens = (batch, seconds) => `${digits(batch / seconds)} tokens/s`

function known(points) {
  if (!points.length) return "Bound only: we timed no such step on this GPU."
  const models = Map.groupBy(points, ({ model }) => model)
  const named = [...models].map(([model, of]) => `${model} at batch ${of.map(({ batch }) => batch).sort((a, b) => a - b).join(", ")}`)
  const contexts = [...new Set(points.map(({ context }) => context))].sort((a, b) => a - b).join(", ")
  return `Bound only: we timed ${named.join(" and ")}, with ${contexts} tokens of context.`
}

function apart([less, more]) {
  if (less.model !== more.model) return `${less.model} and ${more.model}`
  return less.batch !== more.batch ? `batch ${less.batch} and ${more.batch}` : `context ${less.context} and ${more.context}`
}

function said(points, asked, bound) {
  const found = asked.sizes && expected(points, asked)
  if (!found) return asked.sizes ? known(points) : "Bound only: parameters alone do not give the cache."
  const how = found.of.length > 1 ? `expected between ${apart(found.of)}` : "measured"
  return `${tokens(asked.batch, found.seconds)} ± ${percent(found.error, 2)}, ${how}: ${time(found.seconds)} a step, ${percent(bound / found.seconds, 3)} of the bound`
}

// ---- the form ----

function sizesOf(form, { models }) {
  const { model } = form.elements
  if (models[model.value]) return models[model.value]
  const names = Object.keys(Object.values(models)[0])
  return Object.fromEntries(names.map((name) => [name, form.elements[name].valueAsNumber]))
}

function wrong(form) {
  const problem = invalid(form)
  if (problem || form.elements.model.value !== "own") return problem
  const value = (name) => form.elements[name].valueAsNumber
  if (value("width") % value("heads") || value("heads") % value("shared")) return "Expected a hidden width in steps of the heads, and heads in steps of the KV heads."
  return form.elements.dtype.value === "int4" && (value("width") % 128 || value("inner") % 128) ? "Expected widths in steps of 128 for int4." : ""
}

function rows(form, data) {
  const problem = wrong(form)
  if (problem) return { bytes: problem }
  const { model, dtype, gpu, bandwidth, parameters } = form.elements
  const [batch, context] = ["batch", "context"].map((name) => form.elements[name].valueAsNumber)
  const sizes = model.value === "parameters" ? null : sizesOf(form, data)
  const { weights, cache } = sizes ? read(sizes, dtype.value, batch, context) : { weights: ROW[dtype.value](128) / 128 * parameters.valueAsNumber * 1e9, cache: 0 }
  const bytes = weights + cache
  const bound = bytes / (data.machines.find(({ slug }) => slug === gpu.value)?.read ?? bandwidth.valueAsNumber * 1e9)
  const asked = { sizes, shape: sizes && key(sizes), batch, context, bytes }
  const shown = Object.keys(data.ways).map((way) => [way, said(measured(data, gpu.value, way, dtype.value), asked, bound)])
  return {
    bytes: `${bytesOf(bytes / batch)}: a step reads ${bytesOf(weights)} of weights${sizes ? ` and ${bytesOf(cache)} of cache` : ""}`,
    bound: `${tokens(batch, bound)}: ${time(bound)} a step`,
    ...Object.fromEntries(shown),
  }
}

// Own shapes begin as those of the last model, and an own bandwidth as that of the last GPU.
function begin(form, { models, machines }) {
  const { model, gpu, bandwidth } = form.elements
  for (const [name, value] of Object.entries(models[model.value] ?? {})) form.elements[name].value = value
  const machine = machines.find(({ slug }) => slug === gpu.value)
  if (machine) bandwidth.value = Math.round(machine.read / 1e9)
}

function follow(form, data, update) {
  const choose = (machine) => {
    if (data.machines.some(({ slug }) => slug === machine)) form.elements.gpu.value = machine
    update()
  }
  document.addEventListener("change", ({ target }) => target.matches(".rp-machine select") && choose(target.value))
  choose(localStorage.getItem("rp-machine"))
}

calculator("generation", { begin, rows, follow })
