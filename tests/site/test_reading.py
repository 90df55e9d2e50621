"""What a reader does: asks a number for its evidence, touches a chart, chooses a machine, copies code."""

import json
import re
import textwrap
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from docs.publish.evidence import Evidence
from docs.publish.macros import charts
from docs.publish.markdown import scripts
from docs.publish.markdown.pages import LEVELS
from docs.publish.place import Place
from docs.publish.records.schema import Record
from docs.publish.records.store import Store
from tests.site.conftest import ROOT, Site


@pytest.fixture(scope="module")
def sample(site: Site) -> str:
    """A page of the site with the chart of made-up records of two machines in its place: its address."""
    store = Store([record("nvidia-h100-80gb-hbm3", "NVIDIA H100", 1.0), record("laptop", "A laptop", 40.0)], root=ROOT)
    evidence = Evidence(Place("sample.md", "sample/"))
    spec = {"kind": "bars", "case": "sample", "metric": "time", "title": "Ours takes {ours}, eager {eager}"}
    drawn = "".join(charts.render(each, store, evidence) for each in (spec, spec))
    stock = site.html("404.html")
    article = f'<article class="md-content__inner md-typeset"><h1>Sample</h1>{drawn}{evidence.script()}</article>'
    site.added["sample/"] = re.sub(r"<article.*</article>", lambda _: article, stock, flags=re.S)
    return site.address + "sample/"


def record(slug: str, name: str, factor: float) -> Record:
    """Two variants at one point: ours in 1 ms, eager in 2 ms, times the factor."""
    timing = {"p20": 0.9e-3 * factor, "p50": 1e-3 * factor, "p80": 1.2e-3 * factor, "samples": 9}
    slower = {key: value * 2 if key != "samples" else value for key, value in timing.items()}
    common = {
        "case": "sample", "direction": "forward", "shape": {"rows": 8}, "dtype": "float32", "mode": "calls",
        "bytes_read": 4, "bytes_written": 4, "flops": 4, "mix": "copy", "peak_memory_bytes": None, "kernels": None,
        "error": {"value": 0.0, "bound": 1.0}, "build_seconds": 1.0, "binaries": [],
        "sources": {"hash": "none", "files": ["tests/site/test_reading.py"]},
    }  # fmt: skip
    machine = {
        "slug": slug, "name": name, "kind": "cpu", "memory_bytes": 1, "units": 1, "l2_bytes": None, "driver": None,
        "power_limit_w": None, "before": {}, "after": {},
    }  # fmt: skip
    content = {
        "schema": 1, "id": slug, "date": "2026-01-01T00:00:00Z", "command": "none", "commit": "0" * 40, "dirty": False,
        "machine": machine, "software": {"torch": "2"}, "failures": [],
        "ceilings": {"bandwidth": {"copy": {"rate": 1e12, "by": "copy", "time": timing}}, "matrix": {}},
        "rows": [common | {"variant": "ours", "time": timing}, common | {"variant": "eager", "time": slower}],
    }  # fmt: skip
    return Record.model_validate_json(json.dumps(content))


# ---- evidence -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["click", "Enter"])
def test_a_number_opens_its_evidence_and_gets_the_focus_back(site: Site, page: Page, how: str) -> None:
    page.goto(site.address + site.having('class="rp-number"', '"command":')[0])
    number = page.locator("a.rp-number:visible").first
    entry = json.loads(page.locator("#rp-evidence").text_content() or "")[number.get_attribute("data-evidence")]
    number.focus()
    number.click() if how == "click" else page.keyboard.press(how)
    heading = entry["label"].split(": ")[0] if "about" in entry else entry["label"]  # else a line below says where
    dialog = page.get_by_role("dialog", name=heading)
    expect(dialog).to_be_visible()
    for fact in ("value", "command", "machine", "software"):
        expect(dialog).to_contain_text(entry[fact])
    for link in ("source_url", "download_url"):
        expect(dialog.locator(f'a[href="{entry[link]}"]')).to_have_count(1)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(number).to_be_focused()


@pytest.mark.parametrize("width", [1440, 390])
def test_evidence_is_a_sheet_beside_the_number_with_a_command_to_copy(site: Site, page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(site.address + "kernels/softmax/")
    page.locator(".rp-verdict a.rp-number").first.click()
    sheet = page.locator("dialog.rp-evidence")
    box = sheet.bounding_box()
    assert box["x"] + box["width"] == width and box["y"] + box["height"] == 900
    assert (box["width"] < width / 2) == (width > 1000)
    expect(sheet).to_contain_text("The case asks: How close does softmax come")
    sheet.get_by_label("Copy this command").click()
    assert copied(page) == "python -m tests.benchmarks kernels/softmax"


def test_dots_stand_under_numbers_of_the_prose_alone(site: Site, page: Page) -> None:
    page.goto(site.address + "kernels/softmax/")
    prose, table = page.locator(".rp-verdict a.rp-number"), page.locator("td a.rp-number:visible")
    assert "rgba(0, 0, 0, 0)" not in prose.first.evaluate("(one) => getComputedStyle(one).textDecorationColor")
    expect(table.first).to_have_css("text-decoration-color", "rgba(0, 0, 0, 0)")


def test_whole_bars_are_equally_long_in_all_columns(site: Site, page: Page) -> None:
    page.goto(site.address + "kernels/softmax/")
    bars = "(cells) => cells.map((cell) => getComputedStyle(cell, '::after').width)"
    assert len(set(page.locator(".rp-pair .rp-cell").evaluate_all(bars))) == 1


# ---- charts ---------------------------------------------------------------------------------------------------------


def test_charts_of_the_site_are_drawn(site: Site, page: Page) -> None:
    page.goto(site.address + site.having("rp-chart__plot")[0])
    for chart in page.locator(".rp-chart:has(.rp-chart__plot)").all():
        plot = chart.locator(".rp-chart__plot:visible")
        expect(plot).to_have_count(1)
        assert plot.get_attribute("aria-label")
        assert plot.locator("svg path").count() > 1, "a chart without marks"
        assert plot.locator("svg text").count() > 1, "a chart without labels"
        assert chart.locator("table tbody tr").count() > 1, "a chart without its numbers"


def test_a_touch_makes_a_chart_interactive_in_its_place(sample: str, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(sample, wait_until="networkidle")
    assert not any("vega" in url for url in asked), "Vega was loaded before anybody touched a chart"
    plot = page.locator(".rp-chart__plot:visible").first
    before = plot.bounding_box()
    plot.hover()
    expect(page.locator(".rp-chart__plot[data-live]")).to_have_count(1)
    assert plot.bounding_box() == before, "the page moved"
    bar = plot.locator(".mark-rect path").first
    bar.hover()
    tooltip = page.locator("#vg-tooltip-element")
    expect(tooltip).to_be_visible()
    expect(tooltip).to_contain_text("1.00 ms")
    expect(tooltip).to_contain_text("900 µs to 1.20 ms")


def test_a_chart_follows_the_mode(sample: str, page: Page) -> None:
    def bar() -> str:
        return page.locator(".rp-chart__plot:visible .mark-rect path").first.evaluate(
            "(bar) => getComputedStyle(bar).fill"
        )

    toggle = page.locator("[data-md-component=palette] label:visible")
    page.goto(sample)
    light = bar()
    toggle.click()
    expect(page.locator("body[data-md-color-scheme=slate]")).to_be_visible()
    dark = bar()
    toggle.click()
    assert light != dark


def test_the_machine_is_chosen_for_all_charts_and_remembered(sample: str, page: Page) -> None:
    page.goto(sample)
    expect(page.locator(".rp-chart__title:visible").first).to_have_text("Ours takes 1.00 ms, eager 2.00 ms")
    expect(page.get_by_label("Machine")).to_have_count(1)
    page.get_by_label("Machine").select_option("A laptop")
    for again in (False, True):
        if again:
            page.reload()
        titles = page.locator(".rp-chart__title:visible")
        expect(titles).to_have_text(["A laptop: ours is ahead with 40.0 ms"] * 2)


def test_without_scripts_numbers_charts_and_code_are_there(site: Site, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(site.address + site.having("rp-chart__plot", "rp-number", '<div class="language-python')[0])
    expect(page.locator(".rp-chart__plot--wide svg").first).to_be_visible()
    expect(page.locator(".highlight code").first).to_be_visible()
    page.locator("a.rp-number:visible").first.click()
    assert "#" in page.url, "the number leads nowhere"
    context.close()


# ---- finding one's way ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1280, 390])
def test_the_contents_mark_the_section_that_was_jumped_to(site: Site, page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(site.address + "kernels/rms-norm/#the-evidence")
    expect(page.locator(".md-nav--secondary .md-nav__link--active").last).to_have_text("The evidence")
    assert page.locator("#the-evidence").bounding_box()["y"] > page.locator(".md-header").bounding_box()["height"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_learning_path_fits_one_screen(site: Site, page: Page, level: str) -> None:
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{site.address}learning/{level}/")
    expect(page.locator("article details[open]")).to_have_count(0)
    box = page.locator("article").bounding_box()
    assert box["y"] + box["height"] <= 900
    check = page.locator("article details.question").first
    check.locator("summary").first.click()
    expect(check.locator("details.question")).to_have_count(6)
    assert check.bounding_box()["width"] > 0.9 * box["width"], "an open box takes the whole width"


def test_an_opened_box_has_no_halo(site: Site, page: Page) -> None:
    page.goto(site.address + "patterns/attention/")
    box = page.locator("details.question").first
    box.locator("summary").click()
    expect(box).to_have_css("box-shadow", "none")


# ---- copy -----------------------------------------------------------------------------------------------------------


def copied(page: Page) -> str:
    return page.evaluate("navigator.clipboard.readText()")


def section(path: str, name: str) -> str:
    """The text between a section's markers, as pymdownx.snippets embeds it."""
    text = (ROOT / path).read_text()
    found = re.search(rf"^[^\n]*--8<-- \[start:{name}\]\n(.*?)^[^\n]*--8<-- \[end:{name}\]", text, re.S | re.M)
    assert found, f"{path} has no section {name}"
    lines = [line for line in found[1].splitlines() if "--8<-- [" not in line]
    return textwrap.dedent("\n".join(lines)).strip("\n")


def test_the_copy_button_of_a_part_copies_its_script(site: Site, page: Page) -> None:
    """Which runs as pasted: tests/pages/test_scripts.py runs each of them. The part is in it, word by word."""
    source = (ROOT / "docs" / "pages" / "patterns" / "attention.md").read_text()
    embedded = re.findall(r'^--8<-- "([^":]+\.py):([^"]+)"', source, re.M)
    assert embedded
    page.goto(site.address + "patterns/attention/")
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true })")
    texts = []
    for button in page.locator(".highlight .rp-copy").all():
        page.evaluate("navigator.clipboard.writeText('')")
        expect(button).to_have_css("opacity", "1")  # without a pointer over the code
        button.click()
        expect(button).to_have_text("Copied")
        texts.append(copied(page))
    for path, name in embedded:
        served = (site.content(f"{site.prefix}{scripts.served(path)}") or b"").decode()
        assert section(path, name) in served, f"{path}:{name} is not in its script"
        assert served in texts, f"no button copies {path}"


def test_the_kernel_panel_copies_the_file_byte_for_byte(site: Site, page: Page) -> None:
    page.goto(site.address + "kernels/rms-norm/")
    page.locator("[data-copy-url]").first.click()
    expect(page.locator("[data-copy-url]").first).to_have_text("Copied")
    file = (ROOT / "kernels" / "rms_norm.py").read_text()
    assert copied(page) == file
    with page.expect_download() as download:
        page.locator("a[download]").first.click()
    assert Path(download.value.path()).read_text() == file
