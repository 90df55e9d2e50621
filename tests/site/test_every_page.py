"""Every page, visited once: quiet, self-contained, light, as wide as the screen, and readable by everyone."""

from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Response, ViewportSize

from tests.site.conftest import Site

MOST_BYTES = 500_000
DESKTOP: ViewportSize = {"width": 1280, "height": 900}
WIDTH = "document.documentElement.scrollWidth"
COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
OPEN = "document.querySelectorAll('details').forEach((details) => { details.open = true })"
# The hundredth row of a table and line of a listing are made as the first ones are; axe takes its time for each.
THIN = """for (const [long, most] of [['tbody', 3], ['.highlight pre > code', 60]])
    for (const each of document.querySelectorAll(long)) while (each.children[most]) each.children[most].remove()"""
CODE = """[...document.querySelectorAll('.highlight pre > code')].filter((code) => code.scrollWidth > code.clientWidth)
    .map((code) => code.textContent.split('\\n').reduce((one, other) => other.length > one.length ? other : one))"""


@dataclass(frozen=True)
class Visit:
    """What one page did in the browser."""

    said: list[str]
    hosts: set[str]
    sent: dict[str, int]
    wide_code: list[str]
    widths: dict[int, int]
    problems: list[str]


@pytest.fixture(scope="module")
def visits(site: Site, browser: Browser) -> dict[str, Visit]:
    return {url: visit(site, browser, url) for url in site.pages}


def visit(site: Site, browser: Browser, url: str) -> Visit:
    context = browser.new_context(viewport=DESKTOP, color_scheme="light", reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(120_000)  # with everything open, the pages of all numbers are long, and machines busy
    said: list[str] = []
    responses: list[Response] = []
    hosts: set[str] = set()
    page.on("console", lambda message: message.type in ("error", "warning") and said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    page.on("response", lambda response: responses.append(response))
    page.goto(site.address + url, wait_until="networkidle")
    sent = {response.url: int(response.headers.get("content-length", 0)) for response in responses}
    page.evaluate(OPEN)
    wide = page.evaluate(CODE)
    widths = {1280: page.evaluate(WIDTH)}
    for width in (1024, 390):
        page.set_viewport_size({"width": width, "height": 800})
        widths[width] = page.evaluate(WIDTH)
    page.set_viewport_size(DESKTOP)
    page.evaluate(THIN)
    problems = violations(page, "light", {"resultTypes": ["violations"]})
    page.locator("[data-md-component=palette] label:visible").click()
    page.wait_for_selector("body[data-md-color-scheme=slate]")
    problems += violations(page, "dark", COLOURS)
    context.close()
    return Visit(said, hosts - {""}, sent, wide, widths, problems)


def violations(page: Page, mode: str, options: dict) -> list[str]:
    """What axe finds serious or critical, each with where it is."""
    found = Axe().run(page, options=options).response["violations"]
    grave = [rule for rule in found if rule["impact"] in ("serious", "critical")]
    return [
        f"{mode}: {rule['id']}: {rule['help']}: {rule['nodes'][0]['html'][:160]} ({len(rule['nodes'])}×)"
        for rule in grave
    ]


def listed(found: dict[str, object]) -> str:
    return "\n".join(f"{url or 'index.html'}: {what}" for url, what in found.items())


def test_no_page_has_a_console_error(visits: dict[str, Visit]) -> None:
    loud = {url: each.said for url, each in visits.items() if each.said}
    assert not loud, listed(loud)


def test_no_page_asks_another_host(site: Site, visits: dict[str, Visit]) -> None:
    own = urlsplit(site.address).netloc
    foreign = {url: each.hosts - {own} for url, each in visits.items() if each.hosts - {own}}
    assert not foreign, listed(foreign)


def test_first_view_of_any_page_is_light(visits: dict[str, Visit]) -> None:
    """Everything that the first view transfers, fonts included, apart from the search index."""
    sizes = {
        url: sum(size for what, size in each.sent.items() if "/search/" not in what) for url, each in visits.items()
    }
    assert not {url: size for url, size in sizes.items() if size >= MOST_BYTES}, sizes
    assert all(size > 50_000 for size in sizes.values()), "transfers were not counted"


def test_no_page_scrolls_sideways(visits: dict[str, Visit]) -> None:
    wide = {url: each.widths for url, each in visits.items() if any(has > width for width, has in each.widths.items())}
    assert not wide, listed(wide)


def test_code_fits_on_a_desktop(visits: dict[str, Visit]) -> None:
    """Nothing of up to 120 columns scrolls sideways at 1280 pixels."""
    wide = {url: [line for line in each.wide_code if len(line) <= 120] for url, each in visits.items()}
    assert not any(wide.values()), listed({url: lines for url, lines in wide.items() if lines})


def test_axe_finds_nothing_serious_in_light_or_dark_mode(visits: dict[str, Visit]) -> None:
    grave = {url: "\n    ".join(each.problems) for url, each in visits.items() if each.problems}
    assert not grave, listed(grave)
