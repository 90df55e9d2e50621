"""Code to take along, by a button and by an address; and notebooks, edges and rows that are like all others."""

import html
import json
import re
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import urljoin

import pytest
from playwright.sync_api import Page, expect

from docs.publish.generated import census
from docs.publish.markdown import pages, scripts
from docs.publish.place import cuda_files, kernel_files
from tests.benchmarks import captures
from tests.pages.test_blocks import expand
from tests.pages.test_scripts import EMBEDDED
from tests.site.conftest import Site
from tests.site.test_reading import copied

EDGES = """() => {
  const left = document.querySelector("article > h1, article > h2").getBoundingClientRect().left
  const blocks = [...document.querySelectorAll("article > :not(.rp-machine)")]
  const boxes = blocks.map((box) => [box, box.getBoundingClientRect()])
  const shown = boxes.filter(([, { width, height }]) => width && height)
  return shown.map(([box, { right }]) => [Math.round(right - left), box.outerHTML.slice(0, 60)])
}"""


COPIED = re.compile(
    r'<div class="language-(?:python|sh|bash)\b[^>]*>.*?<code>(?P<code>.*?)</code></pre></div>\s*'
    r'(?:<p>)?(?:<p class="rp-from" data-script="(?P<script>[^"]+)")?',
    re.DOTALL,
)  # a block of code, and the script that its button copies in its place
FETCHES = re.compile(r"(.*\n)?git clone \S+\n.*|curl -O \S+ && python \S+", re.DOTALL)  # from the site, or all of it


def copied_on(page: str) -> Iterator[tuple[str, str]]:
    """(code, script) of each button of a page's HTML beside Python or shell; the script is empty where it copies the
    code."""
    for found in COPIED.finditer(page):
        yield html.unescape(re.sub(r"<[^>]+>", "", found["code"])).strip(), found["script"] or ""


def lines_of(code: str) -> list[str]:
    """A file's lines without marks of its sections, and without empty ones: a page leaves out the marks."""
    return [line for line in map(str.rstrip, code.splitlines()) if line and "--8<--" not in line]


class Pasted:
    """What is pasted in an empty folder: test_blocks.py runs typed code, test_scripts.py scripts, kernels have theirs.

    Beside it there is what the compiler printed, which nobody pastes. A part of a Python file is nothing of this.
    """

    def __init__(self, address: str):
        blocks = [block for blocks in census.by_kind().values() for block in blocks]
        whole = [expand(block.body) for block in blocks if not (block.embedded and block.language == "python")]
        whole += [scripts.script(path, site=address) for path in EMBEDDED]
        files = [*kernel_files().values(), *(path for both in cuda_files().values() for path in both)]
        self.texts = {"\n".join(lines_of(text)) for text in [*whole, *map(Path.read_text, files)]}
        self.served = {scripts.served(path) for path in EMBEDDED}
        self.printed = [
            set(lines_of(content) + captures.fitted(content))
            for device in ("cpu", "cuda")
            for script in captures.scripts(device)
            for content in captures.contents(script, device).values()
        ]

    def knows(self, code: str, script: str, url: str) -> bool:
        if script:
            return urljoin(f"/{url}", script).lstrip("/") in self.served
        lines = lines_of(code)
        known = "\n".join(lines) in self.texts or FETCHES.fullmatch(code)
        return bool(known) or any(section.issuperset(lines) for section in self.printed)


def test_what_each_button_copies_is_what_a_test_runs(site: Site) -> None:
    tested = Pasted(canonical(site))
    found = [(url, *each) for url, page in site.pages.items() for each in copied_on(page)]
    faults = [f"{url}: {script or code[:80]!r}" for url, code, script in found if not tested.knows(code, script, url)]
    assert not faults, "expected code that tests run, got\n" + "\n".join(faults)


def test_a_part_of_a_script_is_known_only_by_the_script_that_its_button_copies(site: Site) -> None:
    tested, url = Pasted(canonical(site)), "compiler/modes/"
    code, script = next(each for each in copied_on(site.html(url)) if each[1])
    assert tested.knows(code, script, url)
    assert not tested.knows(code, "", url) and not tested.knows(code, "../modus.py", url)


def test_blocks_are_read_with_the_script_that_their_button_copies() -> None:
    page = """<div class="language-python highlight"><pre><span></span><code><a id="x"></a>x <span>=</span> 1 &lt; 2
</code></pre></div>
<p><p class="rp-from" data-script="../modes.py" data-search-exclude>
<div class="language-sh highlight"><pre><span></span><code>python a.py
</code></pre></div><p>"""
    assert list(copied_on(page)) == [("x = 1 < 2", "../modes.py"), ("python a.py", "")]


def test_a_script_is_copied_from_the_byline_and_by_the_button_of_a_part(site: Site, page: Page) -> None:
    """A part alone would lack its imports: its button copies all that it is part of."""
    page.goto(site.address + "patterns/attention/")
    expected = scripts.script("snippets/patterns/attention.py", site=canonical(site))
    for button in (page.get_by_label("Copy attention.py"), page.get_by_label("Copy the script attention.py").first):
        page.evaluate("navigator.clipboard.writeText('')")
        button.click()
        expect(button).to_have_text("Copied")
        assert copied(page) == expected
    with page.expect_download() as download:
        page.locator(".rp-byline a[download]").first.click()  # the second is the notebook
    assert download.value.suggested_filename == "attention.py"


def canonical(site: Site) -> str:
    return re.search(r'<link rel="canonical" href="([^"]+)"', site.html(""))[1]


def test_every_script_has_its_address_and_its_page_leads_there(site: Site) -> None:
    for path, text in pages.texts().items():
        address = path.removesuffix(".md").removesuffix("index")
        html = site.pages.get(f"{address}/" if address and not address.endswith("/") else address)
        for source in scripts.embedded(text, path) if html else ():
            with urllib.request.urlopen(site.address + scripts.served(source)) as answer:
                assert answer.read().decode() == scripts.script(source, site=canonical(site))
            assert f'{source.rpartition("/")[2]}" download' in html, f"{path} does not offer {source}"


def test_the_timing_page_answers_first(site: Site, page: Page) -> None:
    """The file, three lines, and what they print stand on the first two screens."""
    page.goto(site.address + "validation/timing/")
    page.get_by_role("button", name="Copy the file", exact=True).first.click()
    expect(page.get_by_role("button", name="Copied").first).to_be_visible()
    assert copied(page) == scripts.script("snippets/validation/timing.py", site=canonical(site))
    printed = page.locator(".language-text").first
    expect(printed).to_contain_text("written_out: ")
    assert printed.bounding_box()["y"] < 2 * 900


# ---- a notebook is a page like others -------------------------------------------------------------------------------


def test_a_notebooks_cells_have_the_sites_copy_button(site: Site, page: Page) -> None:
    page.goto(site.address + "notebooks/triton-optimization/")
    expect(page.locator("clipboard-copy")).to_have_count(0)
    button = page.locator(".jp-InputArea .rp-copy").first
    expect(button).to_have_css("opacity", "1")
    button.click()
    expect(button).to_have_text("Copied")
    assert copied(page).startswith("import os\nfrom pathlib import Path\n")


def test_a_notebooks_long_output_scrolls_and_is_reached_by_keys(site: Site, page: Page) -> None:
    """Whether the notebook was executed, is for whoever built the site: here an output is put in."""
    page.goto(site.address + "notebooks/triton-optimization/")
    page.locator(".jp-InputArea").first.evaluate(
        "(area, html) => area.insertAdjacentHTML('afterend', html)",
        f"<div class='jp-OutputArea-output' id='long'><pre>{'int x = 0;<br>' * 200}{'x' * 400}</pre></div>",
    )
    page.set_viewport_size({"width": 1200, "height": 900})  # what scrolls is looked up when the window changes
    output = page.locator("#long pre")
    expect(output).to_have_attribute("tabindex", "0")
    assert output.bounding_box()["height"] < 900 and output.bounding_box()["width"] < 1000


# ---- edges and rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "compiler/what-compile-does/", "kernels/softmax/", "reference/contributing/"])
def test_what_stands_on_a_page_ends_at_one_of_two_edges(site: Site, page: Page, place: str) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(site.address + place)
    found = page.evaluate(EDGES)
    text, code = min(edge for edge, _ in found), max(edge for edge, _ in found)
    assert not [box for edge, box in found if edge not in (text, code)], (text, code)


def test_a_run_fills_its_rows_on_a_phone(site: Site, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(site.address + next(url for url in site.having() if re.fullmatch(r"results/machines/[^/]+/", url)))
    row = page.locator("#runs ~ .rp-scroll table.rp-stacked tbody tr").first
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    cells = row.locator("td").all()
    labels = [cell.evaluate("(cell) => getComputedStyle(cell, '::before').content") for cell in cells]
    assert list(map(json.loads, labels)) == ["commit", "command", "state", "host and software"]
    for above, below in pairwise(cells):
        assert below.bounding_box()["y"] >= above.bounding_box()["y"] + above.bounding_box()["height"] - 1
        assert below.bounding_box()["width"] > 300


@pytest.mark.parametrize(
    ("page_address", "box", "label"),
    [
        ("compiler/modes/", ".md-typeset__scrollwrap:has-text('wide block')", "td:first-child"),
        ("compiler/compile-time/", ".language-text pre > code", ".rp-label"),
    ],
)
def test_the_first_column_of_a_wide_table_stays_on_a_phone(
    site: Site, page: Page, page_address: str, box: str, label: str
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(site.address + page_address)
    table = page.locator(box).first
    table.evaluate("(table) => table.scrollLeft = 1000")
    assert table.evaluate("(table) => table.scrollLeft") > 100, "nothing to scroll"
    edge = table.bounding_box()["x"]
    for line in table.locator(label).all():
        assert abs(line.bounding_box()["x"] - edge) < 1


def test_no_link_of_the_evidence_breaks_on_a_phone(site: Site, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(site.address + "kernels/softmax/")
    page.locator(".rp-verdict a.rp-number").first.click()
    links = page.locator("dialog.rp-evidence .rp-evidence__links a")
    assert "Source" in links.all_text_contents()
    for link in links.all():
        assert link.evaluate("(link) => link.getClientRects().length") == 1
