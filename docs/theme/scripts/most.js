// Where no section has all the words of a query, the search shows those that have most of them (search.js), and here the
// page says so, above the results. The search's worker tells each page that is open; the query says which of them it is.

const field = document.querySelector(".md-search__input")
const above = document.querySelector(".md-search-result__meta")

if (field && above) {
  const note = document.createElement("p")
  note.className = "rp-most"
  note.setAttribute("role", "status")
  note.hidden = true
  above.after(note)
  new BroadcastChannel("rp-search").addEventListener("message", ({ data: { query, most } }) => {
    if (query.trim() !== field.value.trim()) return
    note.textContent = most ? "Nothing has all of these words. These sections have most of them." : ""
    note.hidden = !most
  })
}
