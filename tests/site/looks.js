// rpLight(): notes how a page's words look in light mode.
//
// rpLooks(known): switches to dark mode as a reader does, and gives the looks that are not among these. Elements that have
// them get the attribute data-rp-look: their contrast is to be checked, in both modes. Three of each look, as elements
// that look alike have one contrast, on whichever page. Two look alike where, in light and in dark, name, classes and
// colours are the same, whether the type is large, and what they lie on: backgrounds down to the first that lets nothing
// through, opacities, and whatever is shut, or taken out of the flow and may lie on anything. Of links, which are told
// from the words around them, their exact type counts, and how these words look. In one listing, words in elements of
// the same names and classes look alike. What neither mode shows has no look, nor have words of a drawing: axe takes
// what they lie on for an image, and says nothing of their contrast.
//
// rpShorten(): for the other rules, which take their time for each element, the rest of a long table or listing goes, and
// of marks in a chart. It is made as its beginning is. So does all of a drawing that is hidden.
//
// rpRestore(): what went is there again; of listings their text alone, for where words lie it is all that matters.
//
// rpSwitch(scheme): to "default" or "slate".
(() => {
  const ALIKE = 3
  const LISTING = ".highlight pre > code"
  const LONG = [["tbody", 3], [LISTING, 60], ["svg [class^=mark-]:not(.mark-group)", 3]]
  const OWN = ["visibility", "color", "textDecorationLine"]
  const BELOW = ["backgroundColor", "backgroundImage", "opacity", "position", "overflowY"]
  const [BOLD, LARGE_BOLD, LARGE] = [700, 14, 18] // in points, as axe computes them
  const HIDDEN = { shown: false, own: "", type: "", below: ["rgba(0, 0, 0, 0)", "none", "1", "static", "visible"] }
  const IN_FLOW = ["static", "relative"]
  const body = document.body
  const written = new Set() // elements with words of their own
  const styles = new Map() // of those and of all that they lie in, from the outside: one for each mode
  const sample = []
  const gone = [] // what a shortened page lacks, and how to put it back

  const note = () => {
    for (const [element, modes] of styles) {
      if (!element.checkVisibility()) {
        modes.push(HIDDEN)
        continue
      }
      const style = getComputedStyle(element)
      const [size, weight] = [Number.parseFloat(style.fontSize), Number(style.fontWeight)]
      const large = Math.ceil(72 * size) / 96 >= (weight >= BOLD ? LARGE_BOLD : LARGE)
      const own = `${OWN.map((name) => style[name]).join("|")}|${large}`
      modes.push({ shown: true, own, type: `${size}|${weight}`, below: BELOW.map((name) => style[name]) })
    }
  }

  const ground = (element, [colour, image, opacity, position, overflow], under) => {
    const plain = image === "none" && opacity === "1"
    const clear = plain && colour === "rgba(0, 0, 0, 0)"
    const on = plain && colour.startsWith("rgb(") ? colour : clear ? under : [under, colour, image, opacity].join("|")
    const shut = overflow !== "visible" && !element.clientHeight
    return IN_FLOW.includes(position) && !shut ? on : `${on} ${named(element)} ${shut}`
  }

  const named = (element) => `${element.localName} ${element.getAttribute("class")}`

  const within = (code, element) =>
    element === code ? "" : `${within(code, element.parentElement)}/${named(element)} ${element.getAttribute("style")}`

  const hashes = new Map()
  const hash = (text) => {
    if (!hashes.has(text)) hashes.set(text, hashed(text))
    return hashes.get(text)
  }

  const hashed = (text) => {
    let [one, other] = [1, 2]
    for (let at = 0; at < text.length; at++) {
      one = Math.imul(one ^ text.charCodeAt(at), 2654435761)
      other = Math.imul(other ^ text.charCodeAt(at), 1597334677)
      other ^= other >>> 15
    }
    return `${(one >>> 0).toString(36)}${(other >>> 0).toString(36)}`
  }

  window.rpLight = () => {
    const around = new Set([body])
    const words = document.createTreeWalker(body, NodeFilter.SHOW_TEXT)
    let [listing, count] = [null, null]
    while (words.nextNode()) {
      let element = words.currentNode.parentElement
      if (written.has(element) || !words.currentNode.data.trim()) continue
      if (element.ownerSVGElement && element.localName !== "a") continue
      const code = element.closest(LISTING)
      if (code) {
        if (code !== listing) [listing, count] = [code, new Map()]
        const name = within(code, element)
        count.set(name, (count.get(name) ?? 0) + 1)
        if (count.get(name) > ALIKE) continue
      }
      for (written.add(element); !around.has(element); element = element.parentElement) around.add(element)
    }
    for (const element of [body, ...body.querySelectorAll("*")])
      if (around.has(element)) styles.set(element, [])
    note()
  }

  window.rpSwitch = async (scheme) => {
    const labels = [...document.querySelectorAll("[data-md-component=palette] label")]
    labels.find((label) => label.checkVisibility()).click()
    for (let waits = 0; body.dataset.mdColorScheme !== scheme; waits++) {
      if (waits > 10000) throw new Error(`the button in the header does not lead to ${scheme}`)
      await new Promise((done) => setTimeout(done, 10))
    }
  }

  window.rpLooks = async (known) => {
    await rpSwitch("slate")
    note()
    const seen = new Set(known)
    const grounds = new Map()
    const count = new Map()
    for (const [element, modes] of styles) {
      const under = grounds.get(element.parentElement) ?? ["", ""]
      const on = modes.map(({ below }, mode) => ground(element, below, under[mode]))
      grounds.set(element, on)
      if (!written.has(element) || !modes.some(({ shown }) => shown)) continue
      const around = styles.get(element.parentElement) ?? []
      const own = modes.map(({ own, shown }) => `${shown} ${own}`)
      if (element.localName === "a") own.push(...[...modes, ...around].map((mode) => `${mode.own} ${mode.type}`))
      const name = hash([named(element), ...on, ...own].join("|"))
      if (seen.has(name)) continue
      count.set(name, (count.get(name) ?? 0) + 1)
      if (count.get(name) <= ALIKE) sample.push(element)
    }
    for (const element of sample) element.dataset.rpLook = ""
    return [...count.keys()]
  }

  window.rpShorten = () => {
    const kept = new Set()
    for (let element of sample) for (; element; element = element.parentElement) kept.add(element)
    const cut = (each, most) => {
      const [text, all, rest] = [each.textContent, [...each.childNodes], new Set([...each.children].slice(most))]
      const left = all.filter((child) => !rest.has(child) || kept.has(child))
      if (left.length < all.length) each.replaceChildren(...left)
      gone.push(each.matches(LISTING) ? () => (each.textContent = text) : () => each.replaceChildren(...all))
    }
    for (const drawing of document.querySelectorAll("svg")) if (!drawing.checkVisibility()) cut(drawing, 0)
    for (const [long, most] of LONG) for (const each of document.querySelectorAll(long)) cut(each, most)
  }

  window.rpRestore = () => gone.reverse().forEach((back) => back())
})()
