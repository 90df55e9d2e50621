// (known) => the looks of a page that are not among these. Elements that have them get the attribute data-rp-look: their
// contrast is to be checked, in both modes. Three of each look, as elements that look alike have one contrast, on
// whichever page. Two look alike where name, classes, colours, backgrounds and type are the same, in light and in dark,
// for them and for all that they lie in.
//
// rpShorten(): for the other rules, which take their time for each element, the rest of a long table or listing goes. It
// is made as its beginning is.
(known) => {
  const SCHEMES = ["default", "slate"]
  const ALIKE = 3
  const LONG = [["tbody", 3], [".highlight pre > code", 60]]
  const DECISIVE = [
    "display", "visibility", "color", "fill", "backgroundColor", "backgroundImage", "opacity", "fontSize", "fontWeight",
    "textDecorationLine",
  ]

  const body = document.body
  const chosen = body.dataset.mdColorScheme
  const written = new Set() // elements with words of their own
  const around = new Set([body]) // those, and all that they lie in
  const words = document.createTreeWalker(body, NodeFilter.SHOW_TEXT)
  while (words.nextNode()) {
    let element = words.currentNode.parentElement
    if (written.has(element) || !words.currentNode.data.trim()) continue
    for (written.add(element); !around.has(element); element = element.parentElement) around.add(element)
  }
  const elements = [body, ...body.querySelectorAll("*")].filter((element) => around.has(element))
  const styles = elements.map((element) => `${element.localName} ${element.getAttribute("class")}`)
  for (const scheme of SCHEMES) {
    body.dataset.mdColorScheme = scheme
    elements.forEach((element, at) => {
      const style = getComputedStyle(element)
      for (const name of DECISIVE) styles[at] += `|${style[name]}`
    })
  }
  body.dataset.mdColorScheme = chosen

  const hash = (text) => {
    let [one, other] = [1, 2]
    for (let at = 0; at < text.length; at++) {
      one = Math.imul(one ^ text.charCodeAt(at), 2654435761)
      other = Math.imul(other ^ text.charCodeAt(at), 1597334677)
      other ^= other >>> 15
    }
    return `${(one >>> 0).toString(36)}${(other >>> 0).toString(36)}`
  }
  const seen = new Set(known)
  const names = new Map() // of looks: a hash of the parent's and of the element's own style
  const look = new Map([[body.parentElement, ""]])
  const count = new Map()
  const sample = []
  elements.forEach((element, at) => {
    const key = `${look.get(element.parentElement)}|${styles[at]}`
    if (!names.has(key)) names.set(key, hash(key))
    const name = names.get(key)
    look.set(element, name)
    if (!written.has(element) || seen.has(name)) return
    count.set(name, (count.get(name) ?? 0) + 1)
    if (count.get(name) <= ALIKE) sample.push(element)
  })
  for (const element of sample) element.dataset.rpLook = ""

  window.rpShorten = () => {
    const kept = new Set()
    for (let element of sample) for (; element; element = element.parentElement) kept.add(element)
    for (const [long, most] of LONG)
      for (const each of document.querySelectorAll(long))
        for (const child of [...each.children].slice(most)) if (!kept.has(child)) child.remove()
  }
  return [...count.keys()]
}
