// The search's worker: Material's, which builds the index and answers, with our reading of a query. All its words have to
// stand together: in a title, in a question that the section answers, and what is not there in one paragraph. Of four
// words and more one may be missing. Where that finds nothing, most of the words are enough, and the page says so. They
// are found in their other forms, too, and the last by its beginning, while it is typed.

const FEW = 3 // words of which none may be missing
const WHOLE = 3 // what a whole word weighs against the beginning of one
const ADJACENT = 3 // and two words that stand together, as typed, against the same two apart
const NAMED = 2 // and a section whose title is the query, without a word more
const DEFINED = 1000 // and an entry of the glossary, when the query asks what a word means
const TERM = 3 // and one that is named by the only word
const GLOSSARY = "reference/glossary/#"
const MEANING = /^\s*what do(?:es)?\s+(.+?)\s+mean(?:\s+(?:in|on|for|here)\b.*)?\W*$/i // "mean" is a word of statistics otherwise
const EXCERPT = 200 // characters
const LONG = ["text", "code"] // fields in which two words may be far apart
const FILLERS = new Set(// beside lunr's: how, do, my, is, ...; some are what is left of "don't" and "doesn't"
  ["actually", "between", "doesn", "don", "isn", "know", "made", "make", "makes", "much", "need", "really", "still", "use", "using",
   "very", "vs", "want", "whether"])
const APOSTROPHE = /(\p{L})['’]\p{L}{1,2}(?!\p{L})/gu // "don't" is no name of two parts, and "PyTorch's" is PyTorch
const CALLED = new Map([ // what people type for what pages call otherwise
  ["apple", "macos"], ["c++", "cplusplus"], ["huggingface", "hugging face"], ["macbook", "macos"],
])
const PARTS = /[^\p{L}\p{N}]+/u
const QUERY = 2 // Material's messages: a query, and what was found
const RESULT = 3

// A query is words, without lunr's syntax: "x^2", "a:b" and a lone quote mean nothing special to a reader.
let compounds = new Set() // the parts of names, such as `do_bench`, all of which count
let asked // what a query asks the meaning of
let answering // what the page has to know of the answer beside its results, see most.js
const notes = new BroadcastChannel("rp-search")
const called = (word) => (CALLED.get(word) ?? word.replace(/c\+\+/g, "cplusplus")).split(" ")
addEventListener("message", (event) => {
  const { type, data, clean } = event.data
  if (type !== QUERY || clean) return
  answering = { query: data, most: false }
  asked = data.match(MEANING)?.[1]
  const parts = (asked ?? data).toLowerCase().replace(APOSTROPHE, "$1").split(/\s+/).flatMap(called).map((name) => name.split(PARTS).filter(Boolean))
  compounds = new Set(parts.filter((words) => words.length > 1).flat())
  event.stopImmediatePropagation()
  dispatchEvent(new MessageEvent("message", { data: { type, data: parts.flat().join(" "), clean: true } }))
})

// Material's file is named in the address: its name changes with each version.
importScripts(new URL(`../assets/javascripts/workers/${location.search.slice(1)}`, location))

const reply = self.postMessage.bind(self)
self.postMessage = (message) => {
  if (message.type === RESULT) {
    for (const item of message.data.items.flat()) {
      item.text = excerpt(item.text)
      if ("cplusplus" in (item.terms ?? {})) {
        item.terms["c++"] = item.terms.cplusplus // as it was typed
        delete item.terms.cplusplus
      }
    }
    notes.postMessage(answering)
  }
  reply(message)
}

// Each word is indexed as it stands and by its stem: "recompilation" is found by "recompiles" and by "recompila".
const stemmed = lunr.stemmer
lunr.stemmer = (token) => {
  const stem = stemmed(token.clone())
  return stem.str === token.str ? token : [token, stem]
}
lunr.Pipeline.registerFunction(lunr.stemmer, "forms")

// How many words a section's title has: "Softmax" is more about softmax than "Softmax and dropout".
const lengths = new Map()
const add = lunr.Builder.prototype.add
lunr.Builder.prototype.add = function (section, options) {
  lengths.set(section.location, Math.max(1, section.title.split(PARTS).filter(Boolean).length))
  return add.call(this, section, options)
}

// In the place of lunr's search, which is content with any one of the words. Material's query is "graph* break*".
lunr.Index.prototype.search = function (query) {
  const typed = query.toLowerCase().match(/[^\s*]+/g) ?? []
  const telling = typed.filter((word) => compounds.has(word) || (lunr.stopWordFilter(word) && !FILLERS.has(word)))
  const words = [...new Set(telling.length ? telling : typed)]
  const hits = new Map() // by section, as lunr answers, but with the words of the query for its own; and places in use
  for (const word of words) {
    const found = this.query((clauses) => {
      const forms = new Set([word, stemmed(new lunr.Token(word)).str])
      for (const form of forms) clauses.term(form, { usePipeline: false, boost: WHOLE })
      if (word === typed.at(-1)) clauses.term(word, { usePipeline: false, wildcard: lunr.Query.wildcard.TRAILING })
    })
    for (const { ref, score, matchData } of found) {
      if (!hits.has(ref)) hits.set(ref, { ref, score: 0, matchData: { metadata: {} }, taken: new Set() })
      const hit = hits.get(ref)
      hit.score += score
      hit.matchData.metadata[word] = placesOf(matchData, hit.taken)
    }
  }
  let least = words.length > FEW ? words.length - 1 : words.length
  for (const hit of hits.values()) hit.together = together(hit.matchData.metadata)
  const best = Math.max(0, ...[...hits.values()].map((hit) => hit.together))
  if (best < least && best > words.length / 2) {
    least = best
    answering.most = true
  }
  const result = [...hits.values()].filter((hit) => hit.together >= least)
  for (const hit of result) {
    const { metadata } = hit.matchData
    const titled = Object.values(metadata).filter(({ title }) => title).length
    hit.score *= ADJACENT ** neighbours(metadata, words) * (1 + titled / lengths.get(hit.ref))
    if (titled === words.length && titled === lengths.get(hit.ref)) hit.score *= NAMED
    if (hit.ref.startsWith(GLOSSARY)) hit.score *= asked ? DEFINED : words.length === 1 && titled ? TERM : 1
  }
  return result
}

// How many words of the query stand together. A position holds its paragraph in all but its last twenty bits.
function together(metadata) {
  const words = Object.values(metadata).map(Object.entries)
  const scattered = words.filter((fields) => fields.length && fields.every(([field]) => LONG.includes(field)))
  const paragraphs = new Map()
  for (const fields of scattered) {
    const its = fields.flatMap(([field, { position }]) => position.map((at) => `${field} ${at >>> 20}`))
    for (const paragraph of new Set(its)) paragraphs.set(paragraph, (paragraphs.get(paragraph) ?? 0) + 1)
  }
  return words.length - scattered.length + Math.max(0, ...paragraphs.values())
}

// Where a word stands, by field: every place once, and none that another word of the query has already taken.
function placesOf({ metadata }, taken) {
  const places = {}
  for (const [field, { position }] of Object.values(metadata).flatMap(Object.entries))
    for (const at of position) {
      if (taken.has(`${field} ${at}`)) continue
      taken.add(`${field} ${at}`)
      places[field] ??= { position: [] }
      places[field].position.push(at)
    }
  return places
}

// How many words of the query stand beside the one before them somewhere; "out of memory" may have its "of" between.
function neighbours(metadata, words) {
  return words.slice(1).filter((word, before) => {
    const [first, second] = [metadata[words[before]] ?? {}, metadata[word] ?? {}]
    return Object.keys(first).some((field) => {
      const ends = new Set(second[field]?.position)
      return first[field].position.some((at) => ends.has(at + 1) || ends.has(at + 2))
    })
  }).length
}

// What is said where most of the words stand, or at the beginning: words only, cut between two of them.
function excerpt(html) {
  const text = html.replace(/<\/?(code|sub|sup)>/g, "").replace(/<(?!\/?mark>)[^>]*>/g, " ").replace(/\s+/g, " ").trim()
  const marks = [...text.matchAll(/<mark>/g)].map((mark) => mark.index)
  const within = (first) => marks.filter((mark) => mark >= first && mark < first + EXCERPT).length
  const first = marks.reduce((best, mark) => (within(mark) > within(best) ? mark : best), marks[0] ?? 0)
  const from = first < EXCERPT / 2 ? 0 : text.indexOf(" ", first - EXCERPT / 3) + 1
  const end = text.indexOf(" ", Math.max(from, first) + EXCERPT)
  return text && `<p>${from ? "… " : ""}${text.slice(from, end < 0 ? text.length : end)}${end < 0 ? "" : " …"}</p>`
}
