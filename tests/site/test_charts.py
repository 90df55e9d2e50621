"""Charts in a browser: names lie on nothing, the roofline answers a touch, and two directions stand side by side."""

import pytest
from playwright.sync_api import Page, expect

from tests.site.conftest import Site

ROOFLINE = "validation/roofline/"
ON_POINTS = """(plot) => {
    const LOOSE = 5 // pixels above and below a line's letters, and a point's margin
    const box = (found) => found.getBoundingClientRect()
    const over = (a, b) => a.left + 1 < b.right && a.top + LOOSE < b.bottom
    const meet = (a, b) => over(a, b) && over(b, a)
    const level = (text) => !/rotate\\((?!0)/.test(text.getAttribute("transform") ?? "")
    const points = [...plot.querySelectorAll("svg .mark-symbol path")]
    const names = [...plot.querySelectorAll("svg text")].filter((text) => text.textContent.trim() && level(text))
    return names.filter((name) => points.some((point) => meet(box(name), box(point)))).map((name) => name.textContent)
}"""


@pytest.mark.parametrize("width", [1440, 390])
def test_every_place_of_the_roofline_has_a_name_that_can_be_read(site: Site, page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(site.address + ROOFLINE)
    page.evaluate("document.fonts.ready.then(() => null)")
    plot = page.locator(".rp-chart__plot[aria-label*='ridge point']:visible")
    expect(plot).to_have_count(1)
    assert plot.locator(".mark-symbol path").count() > 30
    assert plot.evaluate(ON_POINTS) == []
    written = " ".join(plot.locator("text").all_text_contents()).replace(", ", ",")
    for name in (
        "ridge point",
        "Softmax and dropout",
        "LayerNorm and GELU",
        "attention,256 tokens",
        "block,width 128",
        "1 row",
        "8192",
    ):
        assert name in written


def test_a_point_of_the_roofline_says_what_it_is(site: Site, page: Page) -> None:
    page.goto(site.address + ROOFLINE)
    plot = page.locator(".rp-chart__plot[aria-label*='ridge point']:visible")
    plot.scroll_into_view_if_needed()
    before = plot.bounding_box()
    plot.hover()
    expect(plot).to_have_attribute("data-live", "")
    assert plot.bounding_box() == before
    plot.locator("[aria-roledescription=point], .mark-symbol path").last.wait_for(state="attached")
    points = plot.locator(".mark-symbol path[fill='var(--rp-ours)']")
    points.first.hover(force=True)
    expect(page.locator("#vg-tooltip-element")).to_contain_text("FLOP/byte")
    expect(page.locator("#vg-tooltip-element")).to_contain_text("ours")


def test_the_numbers_of_the_roofline_open_their_evidence(site: Site, page: Page) -> None:
    page.goto(site.address + ROOFLINE)
    chart = page.locator(".rp-chart:has(.rp-key)").locator(".rp-shown")
    chart.locator("summary").click()
    chart.locator("tr:has-text('RMSNorm') a.rp-number").first.click()
    sheet = page.locator("dialog.rp-evidence")
    expect(sheet).to_be_visible()
    expect(sheet).to_contain_text("flops / (bytes_read + bytes_written)")


@pytest.mark.parametrize("kernel", ["rms-norm", "rope"])  # with most columns, and with the longest shapes
def test_forward_and_backward_stand_side_by_side_where_there_is_room(site: Site, page: Page, kernel: str) -> None:
    page.goto(f"{site.address}kernels/{kernel}/")
    pairs = page.locator(".rp-pair")
    assert pairs.count() > 1
    for width, beside in ((1440, True), (1280, True), (1000, False), (390, False)):
        page.set_viewport_size({"width": width, "height": 900})
        for pair in pairs.all():
            one, other = (chart.bounding_box() for chart in pair.locator("> .rp-chart").all())
            assert (one["y"] == other["y"] and one["x"] + one["width"] < other["x"]) == beside, width
            for box in pair.locator(".rp-scroll:visible").all():
                if beside:
                    assert box.evaluate("(box) => box.scrollWidth - box.clientWidth") <= 0, f"{width}: a column is cut"
            assert pair.locator(".rp-chart__plot:visible").count() in (0, 2), width
