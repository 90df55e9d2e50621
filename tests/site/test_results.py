"""All numbers of a case: the head stays in sight, a link to a line lands below it, and lines can be filtered."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.site.conftest import Site

CASE = "results/machines/nvidia-h100-80gb-hbm3/kernels-softmax/"
HEAD = ".rp-group:has(tr:target) thead th"


@pytest.mark.parametrize("width", [1440, 390])
def test_a_link_to_a_line_lands_below_the_head_which_stays(site: Site, page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    anchors = re.findall(r'<tr id="(kernels-softmax-[^"]+)"', site.pages[CASE])
    page.goto(f"{site.address}{CASE}#{anchors[len(anchors) // 2]}")
    page.wait_for_timeout(300)  # the browser scrolls once fonts are there
    line = page.locator("tr:target").bounding_box()
    head = page.locator(HEAD).nth(1).bounding_box()
    header = page.locator(".md-header").bounding_box()
    assert head["y"] >= header["height"] - 1
    assert head["y"] + head["height"] <= line["y"] + 1 and line["y"] + line["height"] <= 844
    page.locator(".rp-grid:has(tr:target)").evaluate("(box) => { box.scrollLeft = 400 }")
    first = page.locator("tr:target th").bounding_box()
    assert first["x"] == page.locator(".rp-grid:has(tr:target)").bounding_box()["x"], "the first column went away"
    box = page.locator(HEAD).first.bounding_box()
    middle = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    seen = page.evaluate("({x, y}) => document.elementFromPoint(x, y).textContent", middle)
    assert seen.strip() == page.locator(HEAD).first.inner_text(), "another head lies on that of the first column"


@pytest.mark.parametrize("case", ["softmax", "rope", "cross-entropy"])
def test_no_column_is_cut_on_a_wide_screen(site: Site, page: Page, case: str) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{site.address}results/machines/nvidia-h100-80gb-hbm3/kernels-{case}/")
    page.evaluate("document.fonts.ready.then(() => null)")
    heads = "(links) => links.filter((link) => link.getClientRects().length > 1).map((link) => link.textContent)"
    assert page.locator(".rp-grid thead a").evaluate_all(heads) == [], "a word is broken"
    grids = "[...document.querySelectorAll('.rp-grid')].map((box) => box.scrollWidth - box.clientWidth)"
    assert set(page.evaluate(grids)) == {0}


def test_lines_are_filtered_by_words(site: Site, page: Page) -> None:
    page.goto(site.address + CASE)
    every = page.locator(".rp-grid tbody tr").count()
    page.get_by_label("Filter").fill("ours backward")
    left = page.locator(".rp-grid tbody tr:visible")
    assert 0 < left.count() < every
    assert set(left.locator("td:nth-child(2)").all_inner_texts()) == {"ours"}
    expect(page.locator(".rp-filter output")).to_have_text(f"{left.count()} of {every} lines")
    page.get_by_label("Filter").fill("")
    assert page.locator(".rp-grid tbody tr:visible").count() == every
