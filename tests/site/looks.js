// rpSample: the elements of a page whose contrast is to be checked, in both modes: three of each look, as elements that
// look alike have one contrast. Two look alike where colours, backgrounds and type are the same, in light and in dark, for
// them and for all that they lie in.
//
// rpShorten(): for the other rules, which take their time for each element, the rest of a long table or listing goes. It
// is made as its beginning is.
(() => {
  const SCHEMES = ["default", "slate"]
  const ALIKE = 3
  const LONG = [["tbody", 3], [".highlight pre > code", 60]]
  const DECISIVE = [
    "display", "visibility", "color", "fill", "backgroundColor", "backgroundImage", "opacity", "fontSize", "fontWeight",
    "textDecorationLine",
  ]

  const body = document.body
  const chosen = body.dataset.mdColorScheme
  const elements = [body, ...body.querySelectorAll("*")]
  const styles = new Map(elements.map((element) => [element, element.localName]))
  for (const scheme of SCHEMES) {
    body.dataset.mdColorScheme = scheme
    for (const element of elements) {
      const style = getComputedStyle(element)
      styles.set(element, styles.get(element) + DECISIVE.map((name) => style[name]).join("|"))
    }
  }
  body.dataset.mdColorScheme = chosen

  const numbers = new Map() // of looks: an element's holds the number of its parent's
  const look = new Map([[body.parentElement, 0]])
  const count = new Map()
  const sample = []
  for (const element of elements) {
    const key = `${look.get(element.parentElement)}|${styles.get(element)}`
    if (!numbers.has(key)) numbers.set(key, numbers.size + 1)
    const number = numbers.get(key)
    look.set(element, number)
    const written = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim())
    if (!written) continue
    count.set(number, (count.get(number) ?? 0) + 1)
    if (count.get(number) <= ALIKE) sample.push(element)
  }

  window.rpSample = sample
  window.rpShorten = () => {
    const kept = new Set()
    for (let element of sample) for (; element; element = element.parentElement) kept.add(element)
    for (const [long, most] of LONG)
      for (const each of document.querySelectorAll(long))
        for (const child of [...each.children].slice(most)) if (!kept.has(child)) child.remove()
  }
})()
