"""Every page, visited once: quiet, self-contained, light, as wide as the screen, not endless, and readable by all."""

import hashlib
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Error, Page, Response

from tests.site.conftest import DESKTOP, ROOT, ROWS, Site, rows_of
from tests.site.visited import AGAIN, LEFT_OUT, Visited

RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))  # the same in all processes of a run
PARTS = 8  # tests that share the pages: each visits every eighth
MOST_BYTES = 500_000
NARROWER = 1024, 390  # screens beside the desktop's
MOST_PIXELS = 12_000  # of a page that begins with a kernel's verdict, on a screen 1440 wide
LENGTH = "document.documentElement.scrollHeight"
WIDTH = "document.documentElement.scrollWidth"
CONTRAST = ["color-contrast", "link-in-text-block"]
SETTLED = "document.fonts.ready.then(() => document.querySelector('.rp-verdict') !== null)"
LOADED = "document.querySelector('.rp-rows[aria-busy=true]') === null"
SHORT = {"reporter": "no-passes", "selectors": False}
EVERYTHING = SHORT | {"rules": {"region": {"enabled": False}}}  # which is moderate, and slow
STRUCTURE = SHORT | {"rules": {name: {"enabled": False} for name in (*CONTRAST, "region")}}
COLOURS = SHORT | {"runOnly": {"type": "rule", "values": CONTRAST}}
OPEN = "document.querySelectorAll('details').forEach((details) => { details.open = true })"
LOOKS = (Path(__file__).parent / "looks.js").read_text(encoding="utf-8")
BOTH_MODES = """async ([known, everything, structure, colours]) => {
    const looks = await rpLooks(known)
    rpShorten()
    axe.configure({rules: [
        {id: 'color-contrast', selector: '[data-rp-look]'},
        {id: 'link-in-text-block', selector: 'a[href][data-rp-look]'},
    ]})
    const dark = await axe.run(CONTEXT, looks.length ? everything : structure)
    if (!looks.length) return [looks, dark.violations, []]
    await rpSwitch('default')
    return [looks, dark.violations, (await axe.run(CONTEXT, colours)).violations]
}"""
CODE = """[...document.querySelectorAll('.highlight pre > code')].filter((code) => code.scrollWidth > code.clientWidth)
    .map((code) => code.textContent.split('\\n').reduce((one, other) => other.length > one.length ? other : one))"""

CROWDED = """[...document.querySelectorAll('.rp-chart__plot')].flatMap((plot) => {
    const LOOSE = 5 // pixels above and below the letters of two lines, which are part of their boxes
    const slanted = (text) => /rotate\\((?!0)/.test(text.getAttribute('transform') ?? '')
    const box = (text) => text.getBoundingClientRect()
    const seen = (text) => text.textContent.trim() && box(text).width && !slanted(text)
    const texts = [...plot.querySelectorAll('svg text')].filter(seen)
    const { left, right } = box(plot)
    const outside = texts.filter((text) => box(text).left < left - 1 || box(text).right > right + 1)
    const over = (a, b) => a.left + 1 < b.right && a.top + LOOSE < b.bottom
    const pairs = texts.flatMap((one, at) => texts.slice(at + 1).map((other) => [one, other]))
    const meet = ([one, other]) => over(box(one), box(other)) && over(box(other), box(one))
    const words = pairs.filter(meet).map((two) => two.map((text) => text.textContent).join(' on '))
    return [...outside.map((text) => text.textContent + ' outside of its chart'), ...words]
})"""

COVERED = """(() => {
    const header = document.querySelector('.md-header').getBoundingClientRect().bottom
    const boxes = [...document.querySelectorAll('article :is(.rp-chart__plot, table, pre)')]
    const loose = (element) => {
        for (; element && element.localName !== 'article'; element = element.parentElement) {
            const { position, top } = getComputedStyle(element)
            const stays = position === 'fixed' || (position === 'sticky' && top !== 'auto')
            if (stays && !element.matches('th')) return element  // a head stays in sight, on its own table
        }
    }
    const called = (element) => element.localName + (element.className ? '.' + element.classList[0] : '')
    const found = new Set()
    for (let at = 0; at < document.documentElement.scrollHeight; at += innerHeight / 2) {
        scrollTo(0, at)
        for (const box of boxes) {
            const { left, top, bottom, width } = box.getBoundingClientRect()
            const [above, below] = [Math.max(top, header), Math.min(bottom, innerHeight)]
            if (!width || below - above < 8) continue
            for (const part of [0.1, 0.5, 0.9]) {
                const hit = document.elementFromPoint(left + 8, above + part * (below - above))
                if (!hit || box.contains(hit) || hit.contains(box)) continue
                if (loose(hit)) found.add(`${called(loose(hit))} on ${called(box)}`)
            }
        }
    }
    scrollTo(0, 0)
    return [...found]
})()"""  # what lies on a chart, a table or code while somebody scrolls through the page


@pytest.fixture(scope="session")
def visited(site: Site, browser: Browser, pytestconfig: pytest.Config) -> Visited:
    """The pages found faultless before, and none with `--fresh`."""
    code = [Path(__file__).with_name(name) for name in ("conftest.py", "looks.js", Path(__file__).name)]
    method = [browser.version, *(hashlib.sha256(file.read_bytes()).hexdigest() for file in code)]
    again, run = (1, RUN) if pytestconfig.getoption("--fresh", False) else (AGAIN, "")
    return Visited(ROOT / ".cache" / "site-pages", site.unasked, " ".join(method), again, run)


@pytest.fixture
def page(page: Page) -> Page:
    """Where nothing moves."""
    page.emulate_media(reduced_motion="reduce")
    return page


@pytest.mark.parametrize("part", range(PARTS))
def test_pages(
    site: Site, page: Page, visited: Visited, part: int, record_property: Callable[[str, object], None]
) -> None:
    urls = sorted(site.pages)[part::PARTS]
    left_out = [url for url in urls if visited.faultless(url)]
    faults = [fault for url in urls if url not in left_out for fault in visit(site, page, visited, url)]
    record_property(LEFT_OUT, len(left_out))
    assert not faults, "\n".join(faults)


def visit(site: Site, page: Page, visited: Visited, url: str) -> list[str]:
    """The faults of a page, with its address; a page without any is remembered."""
    asked: list[str] = []
    site.looks |= visited.looks()
    before = set(site.looks)
    found = list(faults_of(site, page, url, asked))
    visited.keep(url, asked, faultless=not found)
    visited.keep_looks(site.looks - before)
    return [f"{url or 'index.html'}: {fault}" for fault in found]


@dataclass
class Traffic:
    """What a page says in the console, and what it asks of whom."""

    messages: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    responses: list[Response] = field(default_factory=list)


@contextmanager
def traffic_of(page: Page) -> Iterator[Traffic]:
    """What a page says and asks until the end."""
    traffic = Traffic()
    listeners: dict[Any, Callable] = {
        "console": lambda message: message.type in ("error", "warning") and traffic.messages.append(message.text),
        "pageerror": lambda error: traffic.messages.append(str(error)),
        "request": lambda request: traffic.hosts.add(urlsplit(request.url).netloc),
        "response": lambda response: traffic.responses.append(response),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    yield traffic
    for event, listener in listeners.items():
        page.remove_listener(event, listener)


def faults_of(site: Site, page: Page, url: str, asked: list[str] | None = None) -> list[str]:
    """What is wrong with a page, in lines that begin with what it is about. `asked` gets the paths it asked for."""
    return [fault for address in with_rows(site, url) for fault in faults_at(site, page, address, asked)]


def faults_at(site: Site, page: Page, url: str, asked: list[str] | None) -> list[str]:
    page.set_viewport_size(DESKTOP)
    with traffic_of(page) as traffic:
        found: list[str] = []
        try:
            found.extend(faults_seen(site, page, url, traffic))
            page.evaluate("localStorage.clear(), sessionStorage.clear(), document.documentElement.hidden = true")
        except Error as error:
            found.append(f"browser: {error.message}")
    found += [f"console: {message}" for message in traffic.messages]
    found += [f"host: {host}" for host in traffic.hosts - {"", urlsplit(site.address).netloc}]
    if asked is not None:
        asked += [urlsplit(response.url).path for response in traffic.responses]
    return found


def faults_seen(site: Site, page: Page, url: str, traffic: Traffic) -> Iterator[str]:
    with page.expect_response("**/workers/search.*.js"):  # the last thing that a page loads by itself
        page.goto(site.address + url, wait_until="load")
    page.wait_for_function(LOADED)
    if page.evaluate(SETTLED):
        yield from length(page)
    yield from weight(traffic.responses)
    page.evaluate(f"{OPEN};\n{LOOKS};\nrpLight()")
    yield from wide_code(page)
    yield from wide_page(page, DESKTOP["width"])
    looks, found = in_both_modes(page, site.looks)
    yield from found
    if not found:
        site.looks.update(looks)
    page.evaluate("rpRestore()")
    for width in NARROWER:
        page.set_viewport_size({"width": width, "height": DESKTOP["height"]})
        yield from wide_page(page, width)


def with_rows(site: Site, url: str) -> list[str]:
    """A page's address; then that of a machine's page with the fewest, longest tables of rows that have all markup."""
    tables = {file: html for file, html in site.rows.items() if f"{PurePosixPath(file).parent}/" == rows_of(url)}
    chosen: list[str] = []
    seen: set[tuple[str, str]] = set()
    for file in sorted(tables, key=lambda file: len(tables[file]), reverse=True):
        if markup_of(tables[file]) - seen:
            chosen.append(file)
            seen |= markup_of(tables[file])
    return [url, *(f"{url}?rows={PurePosixPath(file).stem}" for file in chosen)]


def markup_of(html: str) -> set[tuple[str, str]]:
    """The elements of a page, each with its classes."""
    return set(re.findall(r"<([a-z]+)(?: [^>]*?class=\"([^\"]*)\")?", html))


def length(page: Page) -> Iterator[str]:
    """How long a kernel's page is, as it opens: what only a specialist needs has a second page."""
    page.set_viewport_size({"width": 1440, "height": 900})
    if (pixels := page.evaluate(LENGTH)) > MOST_PIXELS:
        yield f"length: {pixels} pixels, expected at most {MOST_PIXELS}: move what few need to the page beside it"
    page.set_viewport_size(DESKTOP)


def wide_code(page: Page) -> Iterator[str]:
    """Code of up to 120 columns that scrolls sideways at 1280 pixels."""
    yield from (f"code: {line}" for line in page.evaluate(CODE) if len(line) <= 120)


def wide_page(page: Page, width: int) -> Iterator[str]:
    """Whether the page scrolls sideways on such a screen, or a chart's words lie on each other or beside it."""
    needed, crowded, covered = page.evaluate(f"[{WIDTH}, {CROWDED}, {COVERED}]")
    if needed > width:
        yield f"width: {needed} pixels on a screen of {width}"
    yield from (f"labels: {two} on a screen of {width}" for two in crowded)
    yield from (f"covered: {two} on a screen of {width}" for two in covered)


def weight(responses: list[Response]) -> Iterator[str]:
    """All that the first view transfers, fonts included; the search's index waits until somebody searches.

    The browser names all fonts that it has kept: of those that only other pages need, too, the bytes count. Of a
    machine's cases a reader opens one: the heaviest counts.
    """
    sizes = {each.url: int(each.headers.get("content-length", 0)) for each in responses}
    heaviest = max((url for url in sizes if f"/{ROWS}" in url), key=sizes.__getitem__, default="")
    total = sum(size for url, size in sizes.items() if f"/{ROWS}" not in url or url == heaviest)
    if not 50_000 < total < MOST_BYTES:
        yield f"weight: {total} bytes, expected more than 50000 and less than {MOST_BYTES}: {sizes}"


def in_both_modes(page: Page, known: Iterable[str], context: str = "document") -> tuple[list[str], list[str]]:
    """The looks of a page in light mode that are not known yet, and what axe finds in both modes.

    Contrast is that of these looks.
    """
    page.add_script_tag(url="/axe.js")
    options = [EVERYTHING, STRUCTURE, COLOURS]
    looks, dark, light = page.evaluate(BOTH_MODES.replace("CONTEXT", context), [[*known], *options])
    return looks, [*serious(dark, "dark"), *serious(light, "light")]


def violations(page: Page, scheme: str, options: dict, context: str = "document") -> list[str]:
    """What axe finds serious or critical, each with where it is. `context` is JavaScript: where axe looks."""
    if not page.evaluate("'axe' in window"):
        page.add_script_tag(url="/axe.js")
    return serious(page.evaluate(f"(options) => axe.run({context}, options)", options)["violations"], scheme)


def serious(found: list[dict], scheme: str) -> list[str]:
    return [
        f"{scheme if rule['id'] in CONTRAST else 'structure'}: {rule['id']}: {rule['help']}: "
        f"{rule['nodes'][0]['html'][:160]} ({len(rule['nodes'])}×)"
        for rule in found
        if rule["impact"] in ("serious", "critical")
    ]


def test_the_rows_that_are_looked_at_have_all_markup_of_the_others(site: Site) -> None:
    looked = {url: [parse_qs(urlsplit(one).query)["rows"][0] for one in with_rows(site, url)[1:]] for url in site.pages}
    shown = {
        rows_of(url): set[tuple[str, str]]().union(
            *(markup_of(site.rows[f"{rows_of(url)}{case}.html"]) for case in cases)
        )
        for url, cases in looked.items()
    }
    missing = {file: markup_of(html) - shown[f"{PurePosixPath(file).parent}/"] for file, html in site.rows.items()}
    assert not {file: tags for file, tags in missing.items() if tags}


# ---- what these tests would find ------------------------------------------------------------------------------------

FAULTS = {
    "structure": '<button type="button"></button>',
    "light": '<p style="color: #999; background: #fff">pale</p>',
    "dark": "<style>[data-md-color-scheme=slate] .dim { color: #333; background: #000 }</style><p class=dim>dim</p>",
    "console": "<script>console.error('a message')</script>",
    "host": "<script>fetch('//127.0.0.2:9/').catch(() => null)</script>",
    "length": f'<div class="rp-verdict" style="height: {MOST_PIXELS}px"></div>',
    "width": '<p style="width: 3000px">wide</p>',
    "covered": '<p style="position: sticky; top: 4rem; background: #fff">x</p><pre style="height: 900px">code</pre>',
    "code": '<div class="highlight"><pre><code style="display: block; width: 9em; overflow: auto">123456789 123456789'
    "</code></pre></div>",
    "labels": '<div class="rp-chart__plot"><svg><text y="9">16384</text><text x="9" y="9">65536</text></svg></div>',
    "weight": '<img src="../heavy.svg" alt="">',
}


def test_each_fault_is_found(site: Site, page: Page) -> None:
    """A page that has them all; it is long, too, with the unreadable words at the end of a table."""
    stock = site.pages["404.html"]
    rows = "".join(
        f"<tr><td>{'readable' if row < 99 else FAULTS['light'] + FAULTS['dark']}</td></tr>" for row in range(100)
    )
    faults = "".join(fault for about, fault in FAULTS.items() if about not in ("light", "dark"))
    article = f"<article><h1>Faults</h1>{faults}<table><tbody>{rows}</tbody></table></article>"
    site.added["heavy.svg"] = random.Random(0).randbytes(MOST_BYTES).hex()  # gzip halves it
    site.added["faults/"] = re.sub(r"<article.*</article>", lambda _: article, stock, flags=re.S)
    found = {fault.partition(":")[0] for fault in faults_of(site, page, "faults/")}
    assert found == set(FAULTS)


WORDS = """<div style="background: {}">
    <p class="words" style="color: #767676; background: none; font: {} serif">words</p></div>"""
ENOUGH = [("white", "16px"), ("#f0f0f0", "24px"), ("#f0f0f0", "bold 19px")]
TOO_LITTLE = [("gray", "16px"), ("#f0f0f0", "16px"), ("#f0f0f0", "bold 18px")]


def test_words_that_are_readable_elsewhere_are_looked_at_on_another_ground_and_where_they_are_small(
    site: Site, page: Page
) -> None:
    """The same words in the same colour: on white they have enough contrast, on light grey where they are large."""
    stock = re.sub(
        r"<article.*</article>", lambda _: "<article><h1>Ground</h1>WORDS</article>", site.pages["404.html"], flags=re.S
    )
    site.added["enough/"] = stock.replace("WORDS", "".join(WORDS.format(*each) for each in ENOUGH))
    assert faults_of(site, page, "enough/") == []
    for each in TOO_LITTLE:
        site.added["less/"] = stock.replace("WORDS", WORDS.format(*each))
        found = {fault.partition(":")[0] for fault in faults_of(site, page, "less/")}
        assert found == {"light", "dark"}, each
