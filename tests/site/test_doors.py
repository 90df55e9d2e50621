"""The start page as it opens: every job and the chart within the first screen, and each job leads somewhere."""

import pytest
from playwright.sync_api import Page

from tests.site.conftest import Site

BOTTOMS = """[...document.querySelectorAll('.rp-jobs li'), document.querySelector('.rp-chart__panel.rp-shown')]
    .map((each) => each.getBoundingClientRect().bottom)"""


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1280, 900)])
def test_jobs_and_chart_stand_in_the_first_screen(site: Site, page: Page, width: int, height: int) -> None:
    page.set_viewport_size({"width": width, "height": height})
    page.goto(site.address)
    page.evaluate("document.fonts.ready.then(() => null)")
    bottoms = page.evaluate(BOTTOMS)
    assert len(bottoms) > 4 and max(bottoms) <= height


def test_jobs_begin_in_a_phone_s_first_screen(site: Site, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(site.address)
    assert page.evaluate(BOTTOMS)[3] < 844
