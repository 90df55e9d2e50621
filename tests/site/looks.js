// rpLight(): notes how a page's words look in light mode.
//
// rpLooks(known): switches to dark mode as a reader does, and gives the looks that are not among these. Elements that have
// them get the attribute data-rp-look: their contrast is to be checked, in both modes. Three of each look, as elements
// that look alike have one contrast, on whichever page. Two look alike where, in light and in dark, name, classes, colours
// and type are the same, and what they lie on: backgrounds down to the first that lets nothing through, opacities, and
// whatever is shut, or taken out of the flow and may lie on anything.
//
// rpShorten(): for the other rules, which take their time for each element, the rest of a long table or listing goes. It
// is made as its beginning is.
//
// rpSwitch(scheme): to "default" or "slate".
(() => {
  const ALIKE = 3
  const LONG = [["tbody", 3], [".highlight pre > code", 60]]
  const OWN = ["visibility", "color", "fill", "fontSize", "fontWeight", "textDecorationLine"]
  const BELOW = ["backgroundColor", "backgroundImage", "opacity", "position", "overflowY"]
  const IN_FLOW = ["static", "relative"]
  const body = document.body
  const written = new Set() // elements with words of their own
  const styles = new Map() // of those and of all that they lie in, from the outside: one for each mode
  const sample = []

  const note = () => {
    for (const [element, modes] of styles) {
      const style = getComputedStyle(element)
      modes.push({ own: OWN.map((name) => style[name]).join("|"), below: BELOW.map((name) => style[name]) })
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

  const hash = (text) => {
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
    while (words.nextNode()) {
      let element = words.currentNode.parentElement
      if (written.has(element) || !words.currentNode.data.trim()) continue
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
      const around = styles.get(element.parentElement) ?? [] // a link is told from the words around it
      const own = [...modes, ...around].map(({ own }) => own)
      const name = hash([named(element), element.checkVisibility(), ...on, ...own].join("|"))
      if (!written.has(element) || seen.has(name)) continue
      count.set(name, (count.get(name) ?? 0) + 1)
      if (count.get(name) <= ALIKE) sample.push(element)
    }
    for (const element of sample) element.dataset.rpLook = ""
    return [...count.keys()]
  }

  window.rpShorten = () => {
    const kept = new Set()
    for (let element of sample) for (; element; element = element.parentElement) kept.add(element)
    for (const [long, most] of LONG)
      for (const each of document.querySelectorAll(long))
        for (const child of [...each.children].slice(most)) if (!kept.has(child)) child.remove()
  }
})()
