// The calculator of a training step on several GPUs, by the arithmetic of snippets/examples/multi_gpu_predict.py: a test compares both.
// docs/publish/macros/calculators/multi_gpu.py makes the form and the data. Outside of what was measured it gives the bytes alone.

import { bytesOf, calculator, digits, inUnits, invalid, percent, time } from "./form.js"

const PASSES = { "all-reduce": 2, "all-gather": 1, "reduce-scatter": 1 }
const GIB = 2 ** 30
const BUCKET = 25 * 2 ** 20 // of DDP
const STEP = { forward: 1e-3, backward: 1e-3, update: 1e-3, peak: GIB } // in the units of the form

const sum = (values) => values.reduce((all, each) => all + each, 0)
const work = (compute, gather = [], reduce = []) => ({ compute, gather, reduce })

// Elements of each parameter, layer by layer, and of all that is in no layer.
export function shapeOf({ layers, width, inner, shared, vocabulary, tied, tokens }) {
  const [square, kv, mlp] = [width, shared, inner].map((columns) => columns * width)
  const layer = [square, kv, kv, square, mlp, mlp, mlp, width, width]
  return { layers: Array(layers).fill(layer), root: (tied ? 1 : 2) * vocabulary * width + width, width, tokens }
}

const elements = ({ layers, root }) => sum(layers.map(sum)) + root

// ---- messages, in the order of the step: all layers are alike, and a backward begins with the last parameter ----

function buckets(parts) {
  let filled = 0
  const sent = parts.map((part) => part.flatMap((size) => {
    filled += size
    if (filled < BUCKET) return []
    const message = ["all-reduce", filled]
    filled = 0
    return [message]
  }))
  if (filled) sent.at(-1).push(["all-reduce", filled])
  return sent
}

function ddp({ layers, root }, forward, backward) {
  const gradients = layers.map((layer) => layer.toReversed().map((size) => 4 * size))
  const reduces = [[], ...buckets([...gradients, [4 * root]])]
  return [work(sum(forward)), ...reduces.map((reduce, i) => work(backward[i] ?? 0, [], reduce))]
}

function sharded({ layers, root }, forward, backward, reshard = true) {
  const sizes = layers.map(sum)
  const gather = (size) => [["all-gather", 2 * size]]
  const reduce = (size) => [["reduce-scatter", 4 * size]]
  return [
    work(0, gather(root)),
    ...sizes.map((size, i) => work(forward[i], gather(size))),
    work(forward.at(-1)),
    work(backward[0]),
    ...sizes.map((size, i) => work(backward[i + 1], reshard ? gather(size) : [], reduce(size))),
    work(0, [], reduce(root)),
  ]
}

function tensor({ tokens, width }, forward, backward) {
  const [norm, matmul, gains] = [4 * tokens * width, 2 * tokens * width, ["all-reduce", 4 * width]]
  const ahead = [["all-gather", norm], ["reduce-scatter", matmul]]
  const back = [["all-gather", matmul], ["reduce-scatter", norm], gains]
  const head = [["all-gather", norm], ...Array(3).fill(["all-reduce", 4 * tokens])]
  return [
    work(0, [], [["reduce-scatter", norm]]),
    ...forward.slice(0, -1).map((took) => work(took, ahead, ahead)),
    work(forward.at(-1), head),
    work(backward[0], [], [["reduce-scatter", norm], gains]),
    ...backward.slice(1).map((took) => work(took, back, back)),
    work(0, [["all-gather", norm]]),
  ]
}

const WORKS = { ddp_works: ddp, sharded_works: sharded, kept_works: (...given) => sharded(...given, false), tensor_works: tensor }

// All GPUs of tensor parallel work on the same tokens.
const tokensOf = ({ tokens }, { works }, n) => tokens * (works === "tensor_works" ? n : 1)

function worksOf(shape, strategy, { forward, backward }, n) {
  const costs = [...shape.layers.map(sum), shape.root] // matmuls take a time in proportion to their weights
  const part = (took) => (cost) => (took * cost) / sum(costs)
  return WORKS[strategy.works]({ ...shape, tokens: tokensOf(shape, strategy, n) }, costs.map(part(forward)), costs.toReversed().map(part(backward)))
}

const messagesOf = (works) => works.flatMap(({ gather, reduce }) => [...gather, ...reduce])

// ---- time and memory ----

export const sent = ([operation, bytes], n) => (bytes * PASSES[operation] * (n - 1)) / n

function seconds([operation, bytes], rates) {
  const known = rates[operation]
  const upper = Math.max(1, known.findIndex(([size]) => size >= bytes))
  const [[low, least], [high, most]] = known.slice(upper - 1, upper + 1)
  return least + ((most - least) * (bytes - low)) / (high - low)
}

// Seconds of a step beyond its compute, where took(message) gives a message's.
export function timeline(works, took, overlap = true) {
  const parts = works.map(({ compute, gather, reduce }) => ({ compute, gather: sum(gather.map(took)), reduce: sum(reduce.map(took)) }))
  if (!overlap) return sum(parts.map(({ gather, reduce }) => gather + reduce))
  let now = 0
  let link = parts[0].gather
  let arrived = link
  for (const [i, { compute, reduce }] of parts.entries()) {
    const start = Math.max(now, arrived)
    const next = parts[i + 1]?.gather
    if (next) link = arrived = Math.max(link, start) + next
    now = start + compute
    if (reduce) link = Math.max(link, now) + reduce
  }
  return Math.max(now, link) - sum(works.map(({ compute }) => compute))
}

// Parameters and AdamW's two moments on one GPU, in fp32, and DDP's buckets.
const heldAlone = (shape, { works }) => (works === "ddp_works" ? 16 : 12) * elements(shape)

// All that a step on n GPUs takes, from the same program on one GPU: seconds, and bytes of its peak.
export function predict(shape, strategy, alone, rates, n) {
  const [whole, split] = [strategy.works === "ddp_works", strategy.works === "tensor_works"]
  const share = whole ? 1 : 1 / n
  const works = worksOf(shape, strategy, alone, n)
  const messages = messagesOf(works)
  const exposed = timeline(works, (message) => seconds(message, rates), !split)
  const count = shape.layers.length
  const parameters = 4 * elements(shape) * share + (split ? 4 * shape.width * (2 * count + 1) * (1 - 1 / n) : 0)
  const inputs = split ? 2 * (tokensOf(shape, strategy, n) * shape.width * (5 * count + 1) - elements(shape)) * (1 - 1 / n) : 0
  const rest = alone.peak - heldAlone(shape, strategy) + inputs
  const held = whole ? parameters : 0
  return {
    messages,
    communication: sum(messages.map((message) => seconds(message, rates))),
    exposed,
    step: alone.forward + alone.backward + alone.update * share + exposed,
    parameters,
    held,
    state: 2 * parameters,
    rest,
    peak: 3 * parameters + held + rest,
  }
}

// ---- words ----

const gib = (bytes) => digits(bytes / GIB)
const size = (bytes) => inUnits(bytes, [[GIB, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "bytes"]])

function off(part) {
  if (Math.abs(part) < 0.005) return "the same"
  return `${percent(Math.abs(part), 2)} ${part > 0 ? "more" : "less"}`
}

const alike = (ours) => `${ours ? "Ours" : "Measure yours"}: this strategy, started with torchrun --nproc-per-node 1`

function outside(messages, rates) {
  for (const [operation, bytes] of messages) {
    const [[least], [most]] = [rates[operation][0], rates[operation].at(-1)]
    if (bytes < least || bytes > most) return `We measured ${operation} messages of ${size(least)} to ${size(most)}. This step has one of ${size(bytes)}.`
  }
}

function memoryOf({ peak, parameters, held, state, rest }, found) {
  const parts = { parameters, gradients: held, state, "activations and more": rest }
  const named = Object.entries(parts).filter(([, bytes]) => bytes).map(([name, bytes]) => `${gib(bytes)} ${name}`)
  return `${gib(peak)} GiB: ${named.join(", ")}${found}`
}

// ---- the form ----

function sizesOf(form, { sizes }) {
  const { model, embeddings, tokens } = form.elements
  if (model.value !== "own") return { ...sizes, tokens: tokens.valueAsNumber, tied: true }
  const own = Object.keys(sizes).map((name) => [name, form.elements[name].valueAsNumber])
  return { ...Object.fromEntries(own), tokens: tokens.valueAsNumber, tied: embeddings.value === "tied" }
}

const chosen = ({ elements: { strategy, compiled } }, data) => data.strategies[strategy.value][compiled.value]
const filled = (form) => Object.entries(STEP).map(([name, unit]) => [name, form.elements[name].valueAsNumber * unit])

function wrong(form, { tied }) {
  const untied = !tied && form.elements.strategy.value === "DDP"
  return invalid(form) || (untied ? "DDP: tied embeddings only. An untied head's gradient is complete first, and the prediction has it last." : "")
}

function rows(form, data) {
  const { model, tokens, gpus } = form.elements
  const sizes = sizesOf(form, data)
  const problem = wrong(form, sizes)
  if (problem) return { step: problem }
  const [n, strategy, shape] = [gpus.valueAsNumber, chosen(form, data), shapeOf(sizes)]
  const messages = messagesOf(worksOf(shape, strategy, {}, n))
  const rates = data.rates[n]
  const ours = Object.entries(oursOf(form, data))
  const shown = {
    alone: alike(ours.length && ours.every(([name, text]) => form.elements[name].value === text)),
    bytes: `${bytesOf(sum(messages.map((message) => sent(message, n))))} in ${messages.length} messages`,
  }
  if (!rates) return { ...shown, step: `We measured ${Object.keys(data.rates).join(" and ")} GPUs only.` }
  const refused = outside(messages, rates)
  if (refused) return { ...shown, step: refused }
  const alone = Object.fromEntries(filled(form))
  const guess = predict(shape, strategy, alone, rates, n)
  const found = strategy.off[n] ?? {}
  const against = (part) => (part in found ? `. For ${model.options[0].text}, we measured ${off(found[part])}.` : "")
  shown.communication = time(guess.communication) + against("communication")
  if (Object.values(alone).some(Number.isNaN)) return { ...shown, step: "Fill in your step on one GPU: forward, backward, update and peak." }
  if (alone.peak <= heldAlone(shape, strategy)) return { ...shown, step: `Peak memory: expected more than the ${gib(heldAlone(shape, strategy))} GiB of parameters and state, got ${gib(alone.peak)} GiB.` }
  const fits = guess.peak <= data.memory
  return {
    ...shown,
    exposed: time(guess.exposed) + against("exposed"),
    step: fits ? `${time(guess.step)}, ${digits((n * tokens.valueAsNumber) / guess.step)} tokens/s${against("step") || `. We did not measure this strategy on ${n} GPUs.`}` : `It does not fit: the GPU has ${gib(data.memory)} GiB.`,
    memory: memoryOf(guess, against("peak")),
  }
}

// Our step on one GPU as the fields have it; nothing where the form asks for another.
function oursOf(form, data) {
  const { model, tokens } = form.elements
  const { alone } = chosen(form, data)
  if (model.value === "own" || tokens.valueAsNumber !== data.tokens || !("peak" in alone)) return {}
  return Object.fromEntries(Object.entries(STEP).map(([name, unit]) => [name, `${Number((alone[name] / unit).toPrecision(4))}`]))
}

const steps = {}

// A step on one GPU is of a model and of how it ran. What the reader filled in for one comes back with it.
function begin(form, data) {
  const { model, tokens, strategy, compiled } = form.elements
  const of = [model.value, model.value === "own" || tokens.value, strategy.value, compiled.value].join()
  if (form.dataset.of !== of) {
    form.dataset.of = of
    const ours = oursOf(form, data)
    for (const name of Object.keys(STEP)) form.elements[name].value = (steps[of] ?? ours)[name] ?? ""
  }
  steps[of] = Object.fromEntries(Object.keys(STEP).map((name) => [name, form.elements[name].value]))
}

calculator("multi_gpu", { begin, rows })
