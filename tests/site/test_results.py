"""All numbers of a case: its rows open on the machine's page, their head stays in sight, and lines can be filtered."""

import re
from pathlib import PurePosixPath

import pytest
from playwright.sync_api import Page, expect

from tests.site.conftest import ROWS, Site, rows_of

MACHINE = "results/machines/nvidia-h100-80gb-hbm3/"
CASE = f"{MACHINE}?rows=kernels-softmax"
HEAD = ".rp-group:has(tr:target) thead th"


def test_a_case_opens_below_the_table_of_cases(site: Site, page: Page) -> None:
    page.goto(site.address + MACHINE)
    assert page.locator(".rp-grid").count() == 0 and page.locator(".md-sidebar--primary").is_visible()
    page.get_by_role("link", name="kernels/softmax", exact=True).click()
    expect(page.locator(".rp-rows h3")).to_have_text("kernels/softmax")
    rows = site.html(f"{ROWS}nvidia-h100-80gb-hbm3/kernels-softmax.html")
    expect(page.locator("#cases ~ .rp-scroll + .rp-rows .rp-grid tbody tr")).to_have_count(rows.count("<tr id="))
    expect(page.locator(".rp-rows h3")).to_be_in_viewport()
    assert page.url == site.address + CASE
    page.go_back()
    expect(page.locator(".rp-rows")).to_have_count(0)


def test_every_case_of_the_table_has_its_rows_and_all_can_be_shown(site: Site, page: Page) -> None:
    page.goto(site.address + MACHINE)
    names = page.locator("#cases ~ .rp-scroll").first.locator("tbody th > a").all_text_contents()
    files = [PurePosixPath(file).stem for file in site.rows if file.startswith(rows_of(MACHINE))]
    assert {name.replace("/", "-") for name in names} == set(files) and len(names) == len(files)
    page.goto(f"{site.address}{CASE}&rows=kernels-rope")
    expect(page.locator(".rp-rows h3")).to_have_text(["kernels/softmax", "kernels/rope"])


def test_rows_that_cannot_be_fetched_are_said_to_be_in_a_file(site: Site, page: Page) -> None:
    page.route(f"**/{ROWS}**", lambda route: route.abort())
    page.goto(site.address + CASE)
    said = page.get_by_role("alert")
    expect(said).to_have_text("The rows of kernels/softmax cannot be loaded here. They are in a file of their own.")
    expect(said).to_be_in_viewport()
    page.unroute_all()
    said.get_by_role("link").click()
    expect(page.locator("h3")).to_have_text("kernels/softmax")


def test_without_scripts_the_table_leads_to_the_files(site: Site, page: Page) -> None:
    page.goto((site.folder / MACHINE / "index.html").as_uri())  # where no module is loaded
    page.get_by_role("link", name="kernels/softmax", exact=True).click()
    expect(page.locator("h3")).to_have_text("kernels/softmax")
    assert page.url.endswith(f"{ROWS}nvidia-h100-80gb-hbm3/kernels-softmax.html")


@pytest.mark.parametrize("width", [1440, 390])
def test_a_link_to_a_line_lands_below_the_head_which_stays(site: Site, page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    rows = site.html(f"{ROWS}nvidia-h100-80gb-hbm3/kernels-softmax.html")
    anchors = re.findall(r'<tr id="(kernels-softmax-[^"]+)"', rows)
    page.goto(f"{site.address}{CASE}#{anchors[len(anchors) // 2]}")
    expect(page.locator("tr:target")).to_be_in_viewport()
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


def test_a_number_leads_to_its_row(site: Site, page: Page) -> None:
    page.goto(site.address + "kernels/softmax/")
    number = page.locator(".rp-verdict a.rp-number").first
    number.click()
    page.locator("dialog.rp-evidence").get_by_role("link", name="Its row among all numbers").click()
    expect(page.locator(".rp-grid tr:target")).to_be_in_viewport()


def test_a_wide_table_of_rows_is_reached_by_keys(site: Site, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(site.address + CASE)
    expect(page.locator(".rp-grid").first).to_have_attribute("tabindex", "0")


WORDS = """(heads) => heads.flatMap((head) => [...head.textContent.matchAll(/\\S+/g)].filter(({ 0: word, index }) => {
    const range = document.createRange()
    range.setStart(head.firstChild, index)
    range.setEnd(head.firstChild, index + word.length)
    return range.getClientRects().length > 1
}).map(([word]) => word))"""  # that are broken


@pytest.mark.parametrize("case", ["softmax", "rope", "cross-entropy"])
def test_no_column_is_cut_on_a_wide_screen(site: Site, page: Page, case: str) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{site.address}{MACHINE}?rows=kernels-{case}")
    expect(page.locator(".rp-filter")).to_be_visible()
    page.evaluate("document.fonts.ready.then(() => null)")
    assert page.locator(".rp-grid thead th").evaluate_all(WORDS) == [], "a word is broken"
    grids = "[...document.querySelectorAll('.rp-grid')].map((box) => box.scrollWidth - box.clientWidth)"
    assert set(page.evaluate(grids)) == {0}


def test_lines_are_filtered_by_words(site: Site, page: Page) -> None:
    page.goto(site.address + CASE)
    expect(page.locator(".rp-filter")).to_be_visible()
    every = page.locator(".rp-grid tbody tr").count()
    page.get_by_label("Filter").fill("ours backward")
    left = page.locator(".rp-grid tbody tr:visible")
    assert 0 < left.count() < every
    assert set(left.locator("td:nth-child(2)").all_inner_texts()) == {"ours"}
    expect(page.locator(".rp-filter output")).to_have_text(f"{left.count()} of {every} lines")
    page.get_by_label("Filter").fill("")
    assert page.locator(".rp-grid tbody tr:visible").count() == every
