"""The search, as a reader uses it: what comes first, what an excerpt shows, and what is said where there is nothing."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from docs.publish.markdown import pages
from tests.site.conftest import DESKTOP, Site

READ = "docs/pages"  # when this is imported: what is searched for stands in front matter

FIRST_THREE = """async (queries) => {
    const field = document.querySelector('.md-search__input')
    const said = document.querySelector('.md-search-result__meta')
    const score = (link) => Number(link.firstElementChild.dataset.mdScore)
    const better = (best, link) => score(link) > score(best) ? link : best
    const best = (page) => [...page.querySelectorAll('a')].reduce(better).href
    const answered = async (words) => {
        field.value = words
        field.dispatchEvent(new KeyboardEvent('keyup'))
        while (!said.textContent.includes('matching document')) await new Promise((done) => setTimeout(done))
    }
    const found = []
    for (const words of queries) {
        said.textContent = ''  // what the last words found is gone
        document.querySelector('.md-search-result__list').replaceChildren()
        await answered(words)
        found.push([...document.querySelectorAll('.md-search-result__item')].slice(0, 3).map(best))
    }
    return found
}"""  # one call for all queries: to type each takes a browser twice as long

NOTHING = ("zebra crossing", "break the zebra umbrella")  # of the latter one word of three, which is not most of them


def queries() -> dict[str, list[str]]:
    """What is typed, and what has to be among the first three results, the first of them first: pages, or sections.

    Pages say so in their front matter: `found_first` and `found_in_three` have phrases, each with the section to be
    found, if it is not the page as a whole.
    """
    found: dict[str, list[str]] = {words: [] for words in NOTHING}
    for key in ("found_first", "found_in_three"):
        for page, said in pages.front_matters().items():
            address = f"{page.removesuffix('.md')}/".removesuffix("index/")
            for words, section in said.get(key, {}).items():
                found.setdefault(words, []).append(f"{address}#{section}" if section else address)
    return found


QUERIES = queries()


@pytest.fixture(scope="module")
def searching(site: Site, tab: Page) -> Iterator[Page]:
    """The first page, with the search open."""
    tab.set_viewport_size(DESKTOP)  # the last test may have left a phone's
    tab.goto(site.address)
    tab.locator(".md-search__input").click()
    yield tab
    tab.goto("about:blank")


def search(page: Page, words: str) -> None:
    """Type words; returns when there is an answer."""
    said = page.locator(".md-search-result__meta")
    for text, answer in (("", "Type to start searching"), (words, re.compile("matching document"))):
        page.fill(".md-search__input", text)
        page.press(".md-search__input", "Shift")  # the field listens to keys
        expect(said).to_have_text(answer)


def first_three(site: Site, page: Page, queries: Iterable[str]) -> list[list[str]]:
    """Of each query the best section of each of the first three pages, as addresses below the site's."""
    return [
        [re.sub(r"\?[^#]*", "", link.removeprefix(site.address)) for link in links]
        for links in page.evaluate(FIRST_THREE, [*queries])
    ]


@pytest.mark.parametrize("turn", ["focus", "hover", "address"])
def test_the_index_waits_until_somebody_turns_to_the_search(site: Site, page: Page, turn: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).path))
    index = json.loads(site.content(f"{site.prefix}search/search_index.json") or b"")
    index["docs"] = [each for each in index["docs"] if each["location"].startswith("kernels/softmax/")]
    page.route("**/search/search_index.json", lambda route: route.fulfill(json=index))  # the whole one takes long
    page.set_viewport_size(DESKTOP)
    page.goto(site.address, wait_until="networkidle")
    assert f"{site.prefix}scripts/asked.js" in asked and f"{site.prefix}search/search_index.json" not in asked
    with page.expect_response("**/search/search_index.json"):
        if turn == "address":
            page.goto(f"{site.address}?q=softmax")
        else:
            getattr(page.locator(".md-search__input"), turn)()
    page.locator(".md-search__input").fill("softmax")
    page.press(".md-search__input", "Shift")
    expect(page.locator(".md-search-result__meta")).to_have_text(re.compile("matching document"))


def test_one_page_at_most_is_to_be_found_first() -> None:
    first = Counter(words for said in pages.front_matters().values() for words in said.get("found_first", ()))
    twice = [words for words, count in first.items() if count > 1]
    assert not twice, f"expected one page each with found_first, got several: {twice}"
    without = [words for words, wanted in QUERIES.items() if wanted and words not in first]
    assert not without, f"expected found_first on some page, got found_in_three alone: {without}"


def test_what_people_type_finds_what_they_want(site: Site, searching: Page) -> None:
    found = dict(zip(QUERIES, first_three(site, searching, QUERIES), strict=True))
    faults = {words: fault for words, wanted in QUERIES.items() if (fault := fault_of(found[words], wanted))}
    assert not faults, "\n".join(f"{words}: {fault}" for words, fault in faults.items())


def fault_of(found: list[str], wanted: list[str]) -> str:
    """What is wrong with the first three results of a query; empty where nothing is."""
    missing = [each for each in wanted if not any(is_in(each, result) for result in found)]
    if missing:
        return f"expected {missing} among the first three results, got {found}"
    if bool(found) != bool(wanted):
        return f"expected {wanted or 'no result'}, got {found}"
    return "" if not found or is_in(wanted[0], found[0]) else f"expected {wanted[0]!r} first, got {found}"


@pytest.mark.parametrize(
    ("found", "wanted", "said"),
    [
        (["a/", "b/#c"], ["a/", "b/"], ""), (["a/#b", "c/"], ["a/#b"], ""), ([], [], ""),
        (["b/", "a/"], ["a/", "b/"], "'a/' first"), (["a/", "b/#d"], ["a/", "b/#c"], "['b/#c'] among the first three"),
        (["a/"], [], "no result"), ([], ["a/"], "['a/'] among the first three"),
    ],
)  # fmt: skip
def test_a_query_that_finds_something_else_is_a_fault(found: list[str], wanted: list[str], said: str) -> None:
    fault = fault_of(found, wanted)
    assert said in fault and bool(said) == bool(fault)


def is_in(wanted: str, result: str) -> bool:
    """Whether a result is a page, or a section of it where no section is wanted."""
    return wanted == (result if "#" in wanted else result.partition("#")[0])


def test_nothing_found_is_said(searching: Page) -> None:
    search(searching, "zebra crossing")
    expect(searching.locator(".md-search-result__meta")).to_have_text("No matching documents")


def test_most_of_the_words_are_said_to_be_not_all_of_them(searching: Page) -> None:
    note = searching.locator(".rp-most")
    for words, said in (("graph break zebra", True), ("graph break", False), ("zebra crossing", False)):
        search(searching, words)
        expect(note).to_be_visible(visible=said)
    search(searching, "graph break zebra")
    expect(note).to_have_text("Nothing has all of these words. These sections have most of them.")
    expect(searching.locator(".md-search-result__terms").first).to_have_text("Missing: zebra")


def test_a_word_that_is_missing_is_named(searching: Page) -> None:
    """Of four words and more."""
    search(searching, "float64 reference largest error zebra")
    expect(searching.locator(".md-search-result__terms").first).to_have_text("Missing: zebra")


def test_an_excerpt_is_short_and_shows_what_was_found_among_prose(searching: Page) -> None:
    search(searching, "bandwidth copy")
    texts = [article.inner_text() for article in searching.locator(".md-search-result article:has(mark)").all()]
    assert texts
    assert all(len(text) < 400 for text in texts)
    assert searching.locator(".md-search-result pre").count() == 0


def test_the_index_has_prose_for_its_text_and_no_tables_of_numbers(site: Site) -> None:
    sections = json.loads((site.folder / "search" / "search_index.json").read_text())["docs"]
    assert any("rms_norm" in section.get("code", "") for section in sections)
    assert not [each["location"] for each in sections if "<pre>" in each["text"] or "p20 to p80" in each["text"]]


def test_every_question_is_in_the_index(site: Site) -> None:
    """At the section that answers it, or while none does where it stands."""
    sections = json.loads((site.folder / "search" / "search_index.json").read_text())["docs"]
    found = {text for each in sections for text in re.findall(r"<p>(.*?)</p>", each.get("questions", ""))}
    every = "".join(html for url, html in site.pages.items() if url.startswith("reference/questions"))
    asked = re.findall(r"<tr>\s*<td>(.*?)</td>", every)
    assert asked and {re.sub(r"<[^>]*>", "", each).strip() for each in asked} == found


def test_a_result_leads_to_its_section(searching: Page) -> None:
    search(searching, "ridge point")
    searching.locator(".md-search-result__item").first.locator("a[href*='#']").first.click()
    expect(searching.locator("#two-bounds-and-the-point-where-they-meet")).to_be_in_viewport()
