// Half of what a page would load is the search's index. It is fetched when somebody turns to the search: before Material's
// script runs, its request for the index is made to wait.

const asked = new Promise((turned) => {
  const search = ".md-search, [for=__search]"
  const parameters = new URLSearchParams(location.search)
  if (parameters.has("q") || parameters.has("h")) turned() // a query in the address, or words to highlight
  for (const type of ["focusin", "pointerover", "touchstart"]) {
    addEventListener(type, ({ target }) => target.closest?.(search) && turned(), { passive: true })
  }
})

const { open, send } = XMLHttpRequest.prototype
XMLHttpRequest.prototype.open = function (method, url, ...rest) {
  this.waits = String(url).endsWith("/search/search_index.json")
  return open.call(this, method, url, ...rest)
}
XMLHttpRequest.prototype.send = function (body) {
  if (this.waits) asked.then(() => send.call(this, body))
  else send.call(this, body)
}
