"""The glossary: each term is shown once a page, where it first stands, to whoever points, tabs or taps."""

import re
from collections import Counter

import pytest
from playwright.sync_api import Browser, Page, expect

from docs.publish.site.glossary import terms
from tests.site.conftest import ROOT, Site
from tests.site.test_every_page import COLOURS, STRUCTURE, violations

TERM = re.compile(r'<a class="rp-term" href="[^"#]*glossary/#([\w-]+)"')
TERMS = {term.id: term for term in terms((ROOT / "docs/pages/reference/glossary.md").read_text(encoding="utf-8"))}
HOME = "compiler/what-compile-does/"


def test_every_entry_is_shown_somewhere_and_has_its_anchor(site: Site) -> None:
    used = {found for html in site.pages.values() for found in TERM.findall(html)}
    assert used == set(TERMS), f"used nowhere: {set(TERMS) - used}; no entries: {used - set(TERMS)}"
    anchors = set(re.findall(r'<h3[^>]* id="([\w-]+)"', site.pages["reference/glossary/"]))
    assert anchors == set(TERMS)


def test_a_term_is_shown_once_a_page(site: Site) -> None:
    for url, html in site.pages.items():
        counts = Counter(TERM.findall(html))
        assert set(counts.values()) <= {1}, f"{url}: {counts.most_common(1)}"
        described = re.findall(r'class="rp-meaning" id="term-([\w-]+)"', html)
        assert sorted(described) == sorted(counts), f"{url}: terms and their meanings differ"


@pytest.mark.parametrize("how", ["hover", "focus"])
def test_a_meaning_shows_and_hides(site: Site, page: Page, how: str) -> None:
    page.goto(site.address + HOME)
    term = page.locator(".rp-term:visible").first
    meaning = page.locator(f"#{term.get_attribute('aria-describedby')}")
    expect(meaning).to_be_hidden()
    term.hover() if how == "hover" else term.focus()
    expect(meaning).to_be_visible()
    expect(meaning).to_have_text(TERMS[meaning.get_attribute("id").removeprefix("term-")].text)
    expect(meaning).to_be_in_viewport(ratio=1)
    page.keyboard.press("Escape")
    expect(meaning).to_be_hidden()


def test_the_pointer_can_go_to_the_meaning_and_leave_it(site: Site, page: Page) -> None:
    page.goto(site.address + HOME)
    term = page.locator(".rp-term:visible").first
    term.hover()
    meaning = page.locator(f"#{term.get_attribute('aria-describedby')}")
    meaning.hover()
    page.wait_for_timeout(400)
    expect(meaning).to_be_visible()
    page.locator("h1").hover()
    expect(meaning).to_be_hidden()


def test_enter_leads_to_the_entry(site: Site, page: Page) -> None:
    page.goto(site.address + HOME)
    term = page.locator(".rp-term:visible").first
    entry = term.get_attribute("href").partition("#")[2]
    term.press("Enter")
    expect(page.locator(f"h3#{entry}")).to_be_in_viewport()


def test_the_first_tap_shows_and_the_second_leads_to_the_entry(site: Site, browser: Browser) -> None:
    context = browser.new_context(has_touch=True, is_mobile=True, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(site.address + HOME)
    term = page.locator(".rp-term:visible").first
    term.tap()
    expect(page.locator(".rp-meaning:popover-open")).to_be_in_viewport(ratio=1)
    assert page.url == site.address + HOME
    term.tap()
    expect(page).to_have_url(re.compile("reference/glossary/#"))
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_meaning_can_be_read_by_everyone(site: Site, page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto(site.address + HOME)
    page.locator(".rp-term:visible").first.focus()
    expect(page.locator(".rp-meaning:popover-open")).to_be_visible()
    assert not violations(page, scheme, COLOURS, "'.rp-meaning:popover-open'")
    assert not violations(page, scheme, STRUCTURE, "{include: ['.rp-meaning:popover-open', '.rp-term']}")
