"""What a reader does with the compiled code of a kernel: opens it, points at lines, pins one: by mouse, key, touch."""

import json
import re
from dataclasses import dataclass
from urllib.parse import quote, urljoin

import pytest
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect

from docs.publish.markdown.markers import MARKER
from tests.site.conftest import Site
from tests.site.test_every_page import LOOKS, WIDTH, in_both_modes

WHOLE = "kernels/softmax/"
PAGE = "kernels/viewer/"  # the same without its drawings, rows and code, which take a browser longest
DATA = "compiled/softmax/"
BESIDE = "kernels/rms-norm/", "compiled/rms_norm/"  # torch.compile's kernels stand beside ours
COMPILER = "compiler/inductor-code/", "compiled/what-compile-does/"
ORIGIN = re.compile(r" {4}// line (\d+)$")
WIDE: ViewportSize = {"width": 1440, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
TARGETS = ("sm_90", "sm_80")  # the viewer's default, and another that every kernel has
IN_SIGHT = """(pane) => { const box = pane.getBoundingClientRect()
    return [...pane.querySelectorAll('.rp-lit')].some((row) => {
        const its = row.getBoundingClientRect(); return its.top >= box.top && its.bottom <= box.bottom }) }"""
TEXT = "(pane) => [...pane.querySelectorAll('[role=option]')].map((row) => row.textContent.replace(/\\n$/, ''))"


@dataclass(frozen=True)
class Example:
    """A kernel of the page, and a line of its source that became instructions: how many for each of TARGETS."""

    configuration: str
    kernel: str
    line: int
    counts: dict[str, int]

    def address(self, target: str, *rest: str) -> str:
        return "#compiled/" + "/".join(quote(part) for part in (self.configuration, self.kernel, target, *rest))


def read(site: Site, url: str, data: str = DATA) -> str:
    """What is served at an address relative to one of the viewer's folders."""
    content = site.content(site.prefix + urljoin(data, url))
    assert content is not None, f"nothing is served at {url}"
    return content.decode()


@pytest.fixture(scope="module", autouse=True)
def light(site: Site) -> None:
    site.added[PAGE] = re.sub(r"<(svg|tbody|pre)\b.*?</\1>", "", site.html(WHOLE), flags=re.S)


@pytest.fixture(scope="module")
def index(site: Site) -> dict:
    return json.loads(read(site, "index.json"))


def origins(site: Site, kernel: dict, target: str) -> list[int]:
    """The line of the source that each line of the machine code came from, 0 for none."""
    found = map(ORIGIN.search, read(site, kernel["targets"][target]["forms"]["sass"]).splitlines())
    return [int(line[1]) if line else 0 for line in found]


@pytest.fixture(scope="module")
def example(site: Site, index: dict) -> Example:
    """The first kernel of ours with a tl.load or tl.exp2 that became SASS for both targets."""
    for configuration in index["configurations"]:
        for kernel in configuration["kernels"]:
            if kernel["source"]["form"] != "python" or not set(TARGETS) <= set(kernel["targets"]):
                continue
            source = read(site, kernel["source"]["url"]).splitlines()
            made = {target: origins(site, kernel, target) for target in TARGETS}
            for line, text in enumerate(source, 1):
                counts = {target: lines.count(line) for target, lines in made.items()}
                if re.search(r"\btl\.(load|exp2)\(", text) and all(counts.values()):
                    return Example(configuration["id"], kernel["name"], line, counts)
    pytest.fail("no kernel has a line with tl.load or tl.exp2 that became SASS")


@pytest.fixture
def page(page: Page) -> Page:
    """Wide enough for two panes."""
    page.set_viewport_size(WIDE)
    return page


def opened(page: Page, address: str) -> Page:
    """The page at an address, once both panes have their lines."""
    page.goto(address)
    expect(viewer(page)).to_be_visible()
    for pane in listings(page):
        expect(pane).to_have_attribute("aria-busy", "false")
    return page


def viewer(page: Page) -> Locator:
    return page.locator("dialog.rp-viewer")


def listings(page: Page) -> list[Locator]:
    """The first pane's lines and the second's."""
    return [page.locator(".rp-viewer__listing").nth(side) for side in (0, 1)]


def row(pane: Locator, line: int) -> Locator:
    """A line of a pane by its own number."""
    return pane.locator(f"[role=option]:has(> [data-at='{line}'])")


def lit(pane: Locator) -> list[int]:
    """The numbers of the lines that are lit."""
    return pane.evaluate("(pane) => [...pane.querySelectorAll('.rp-lit > i')].map((i) => Number(i.dataset.at))")


def chosen(page: Page, name: str, side: int = 0) -> str:
    return page.locator(f".rp-viewer select[name={name}]").nth(side).input_value()


# ---- opening --------------------------------------------------------------------------------------------------------


def test_nothing_is_loaded_before_it_is_opened(site: Site, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(site.address + WHOLE, wait_until="networkidle")
    assert not [url for url in asked if "/compiled/" in url]
    page.locator("a[data-explorer]").click()
    for pane in listings(page):
        expect(pane).to_have_attribute("aria-busy", "false")
    loaded = [url for url in asked if "/compiled/" in url]
    assert len(loaded) == 2, f"expected the index and one listing, got {loaded}"
    assert chosen(page, "target") == "sm_90"
    assert (chosen(page, "form", 0), chosen(page, "form", 1)) == ("python", "sass")
    assert "#compiled/" in page.url


def test_a_deep_link_opens_a_kernel_at_a_target_and_a_line(site: Site, page: Page, example: Example) -> None:
    target = TARGETS[1]
    address = example.address(target, "python", "sass", f"L{example.line}")
    opened(page, site.address + PAGE + address)
    source, made = listings(page)
    assert chosen(page, "configuration") == example.configuration
    assert chosen(page, "target") == target
    assert lit(source) == [example.line]
    assert len(lit(made)) == example.counts[target]
    assert source.evaluate(IN_SIGHT), "the line is not in sight"
    assert made.evaluate(IN_SIGHT), "nothing that the line became is in sight"
    assert page.url.endswith(address)
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(viewer(page)).to_be_hidden()
    assert "#" not in page.url
    expect(page.locator("a[data-explorer]")).to_be_focused()


def test_what_a_deep_link_names_wrongly_falls_back_to_the_default(site: Site, page: Page, index: dict) -> None:
    opened(page, site.address + PAGE + "#compiled/none/none/none/none/none/Lnone")
    assert chosen(page, "configuration") == index["configurations"][0]["id"]
    assert (chosen(page, "form", 0), chosen(page, "form", 1)) == ("python", "sass")
    assert lit(listings(page)[0]) == []


def test_a_deep_link_on_the_page_itself_opens_it_too(site: Site, page: Page, example: Example) -> None:
    page.goto(site.address + PAGE)
    for target in TARGETS:
        page.evaluate("(hash) => { location.hash = hash }", example.address(target, "python", "ttgir"))
        expect(page.locator(".rp-viewer select[name=target]")).to_have_value(target)
        expect(page.locator(".rp-viewer select[name=form]").nth(1)).to_have_value("ttgir")
    page.go_back()
    page.go_back()
    expect(viewer(page)).to_be_hidden()


def test_an_address_elsewhere_on_the_page_closes_it_and_leads_there(site: Site, page: Page, example: Example) -> None:
    opened(page, site.address + PAGE + example.address("sm_90"))
    heading = page.locator(".md-content h2[id]").last
    page.evaluate("(id) => { location.hash = id }", heading.get_attribute("id"))
    expect(viewer(page)).to_be_hidden()
    assert page.url == f"{site.address}{PAGE}#{heading.get_attribute('id')}"
    page.evaluate("() => new Promise((done) => setTimeout(done, 200))")
    expect(heading).to_be_in_viewport()
    expect(page.locator("a[data-explorer]")).not_to_be_focused()


def test_every_form_is_shown_as_it_is(site: Site, page: Page, index: dict, example: Example) -> None:
    """Highlighting loses and adds nothing; the markers of embedded sections are empty lines."""
    configuration = next(each for each in index["configurations"] if each["id"] == example.configuration)
    kernel = next(each for each in configuration["kernels"] if each["name"] == example.kernel)
    opened(page, site.address + PAGE + example.address("sm_90"))
    forms = kernel["targets"]["sm_90"]["forms"]
    assert {"ttir", "ttgir", "ptx", "sass"} <= set(forms)
    for form, url in {"python": kernel["source"]["url"], **forms}.items():
        page.locator(".rp-viewer select[name=form]").nth(1).select_option(form)
        pane = page.get_by_role("listbox", name=index["forms"][form]).last
        expect(pane).to_have_attribute("aria-busy", "false")
        expect(pane.locator(".rp-code-keyword").first).to_be_attached()
        expected = ["" if MARKER.match(line) else line for line in read(site, url).rstrip().split("\n")]
        assert pane.evaluate(TEXT) == [line if form == "python" else ORIGIN.sub("", line) for line in expected]


def test_the_first_view_begins_at_the_first_load(site: Site, page: Page) -> None:
    opened(page, site.address + PAGE + "#compiled/")
    source = next(pane for pane in listings(page) if pane.locator("[role=option]").count())
    current = source.locator(".rp-current")
    expect(current).to_contain_text("_all_kept(")  # which loads, as only functions that this kernel calls do
    expect(current).to_be_in_viewport()


# ---- light ----------------------------------------------------------------------------------------------------------


def test_pointing_lights_what_a_line_became_and_what_it_came_from(site: Site, page: Page, example: Example) -> None:
    opened(page, site.address + PAGE + example.address("sm_90"))
    source, made = listings(page)
    row(source, example.line).hover()
    became = lit(made)
    assert lit(source) == [example.line]
    assert len(became) == example.counts["sm_90"]
    expect(page.locator(".rp-viewer [role=status]")).to_have_text(
        re.compile(rf"^line {example.line}: {len(became)} instructions? of SASS$")
    )
    page.locator(".rp-viewer h2").hover()
    assert lit(source) == lit(made) == []
    row(made, became[0]).hover()
    assert lit(source) == [example.line]
    assert lit(made) == became


def test_a_pinned_line_stays_lit_in_the_next_form(site: Site, page: Page, example: Example) -> None:
    opened(page, site.address + PAGE + example.address("sm_90"))
    source, made = listings(page)
    row(source, example.line).click()
    assert made.evaluate(IN_SIGHT), "the other pane did not scroll to it"
    assert page.url.endswith(f"/L{example.line}")
    page.locator(".rp-viewer h2").hover()
    assert lit(source) == [example.line]
    page.locator(".rp-viewer select[name=form]").nth(1).select_option("ptx")
    expect(page.locator(".rp-viewer [role=status]")).to_contain_text("of PTX")
    expect(made).to_have_attribute("aria-busy", "false")
    assert lit(made)
    assert made.evaluate(IN_SIGHT)
    page.keyboard.press("Escape")
    assert lit(source) == lit(made) == []
    expect(viewer(page)).to_be_visible()


def test_choices_persist_where_they_can(site: Site, page: Page, index: dict, example: Example) -> None:
    """A form that a target lacks is there again with the next target that has it."""
    configuration = next(each for each in index["configurations"] if each["id"] == example.configuration)
    amd = [kernel["name"] for kernel in configuration["kernels"] if "gfx942" in kernel["targets"]]
    assert amd, "no kernel of this configuration is compiled for gfx942"
    opened(page, site.address + PAGE + example.address("sm_90", "ttgir", "sass"))
    target = page.locator(".rp-viewer select[name=target]")
    target.select_option("gfx942")
    expect(page.locator(".rp-viewer select[name=form]").nth(1)).to_have_value("amdgcn")
    expect(page.locator(".rp-viewer select[name=form]").nth(0)).to_have_value("ttgir")
    target.select_option("sm_80")
    expect(page.locator(".rp-viewer select[name=form]").nth(1)).to_have_value("sass")


@pytest.fixture(scope="module")
def beside(site: Site) -> dict:
    """The forward of the page where torch.compile's kernel stands beside ours."""
    configurations = json.loads(read(site, "index.json", BESIDE[1]))["configurations"]
    return next(each for each in configurations if each["id"] == "forward-32768x4096")


def test_a_second_kernel_can_be_laid_beside_the_first(site: Site, page: Page, beside: dict) -> None:
    ours, theirs = (next(k for k in beside["kernels"] if k["maker"] == maker) for maker in ("", "torch.compile"))
    assert {ours["source"]["form"], theirs["source"]["form"]} == {"python", "triton"}
    opened(page, site.address + BESIDE[0] + f"#compiled/{beside['id']}/{ours['name']}/sm_90")
    page.locator(".rp-viewer select[name=kernel]").nth(1).select_option(theirs["name"])
    for form in ("triton", "sass"):
        page.locator(".rp-viewer select[name=form]").nth(1).select_option(form)
        expect(page.get_by_role("listbox", name=theirs["name"])).to_have_attribute("aria-busy", "false")
        address = page.url
        page.goto("about:blank")
        opened(page, address)
        assert (chosen(page, "kernel", 0), chosen(page, "kernel", 1)) == (ours["name"], theirs["name"])
        assert (chosen(page, "form", 0), chosen(page, "form", 1)) == ("python", form)
    for name in (ours["name"], theirs["name"]):
        expect(page.locator(".rp-viewer__notes")).to_contain_text(name)
    expect(page.locator(".rp-viewer__notes")).to_contain_text(theirs["provenance"])
    both = page.locator(".rp-viewer__facts label", has=page.locator("[value=registers]")).locator("b")
    values = [kernel["targets"]["sm_90"]["values"]["registers"] for kernel in (ours, theirs)]
    expect(both).to_have_text([f"first {values[0]}", f"second {values[1]}"])


def test_only_lines_of_the_same_kernel_light_up_together(site: Site, page: Page, beside: dict) -> None:
    theirs = next(kernel for kernel in beside["kernels"] if kernel["maker"])
    listing = read(site, theirs["targets"]["sm_90"]["forms"]["sass"], BESIDE[1]).splitlines()
    lines = [int(found[1]) for found in map(ORIGIN.search, listing) if found]
    address = f"#compiled/{beside['id']}/{theirs['name']}/sm_90/triton/sass/L{lines[0]}"
    opened(page, site.address + BESIDE[0] + address)
    source, made = listings(page)
    assert lit(source) == [lines[0]]
    assert len(lit(made)) == lines.count(lines[0])
    ours = next(kernel["name"] for kernel in beside["kernels"] if not kernel["maker"])
    page.locator(".rp-viewer select[name=kernel]").nth(1).select_option(ours)
    expect(page.get_by_role("listbox", name=ours)).to_have_attribute("aria-busy", "false")
    assert (lit(source), lit(made)) == ([lines[0]], [])
    select = page.locator(".rp-viewer select[name=kernel]").nth(0)
    select.select_option(ours)
    expect(source).to_have_attribute("aria-label", re.compile(ours))
    expect(page.locator(".rp-viewer [role=status]")).to_be_empty()
    assert lit(source) == lit(made) == [], "a line of a kernel that is gone is lit"
    expect(viewer(page)).not_to_have_class(re.compile("rp-pinned"))
    select.select_option(theirs["name"])
    expect(page.get_by_role("listbox", name=theirs["name"])).to_have_count(2)


def test_the_compiler_page_shows_cpp_for_a_cpu(site: Site, page: Page) -> None:
    index = json.loads(read(site, "index.json", COMPILER[1]))
    configuration = next(one for one in index["configurations"] if "cpu" in one["kernels"][0]["targets"])
    page.goto(site.address + COMPILER[0])
    page.locator("a[data-explorer]").click()
    expect(page.locator(".rp-viewer select[name=target]")).to_have_value("sm_90")
    assert (chosen(page, "form", 0), chosen(page, "form", 1)) == ("triton", "sass")
    page.locator(".rp-viewer select[name=configuration]").select_option(configuration["id"])
    expect(page.locator(".rp-viewer select[name=target]")).to_have_value("cpu")
    assert (chosen(page, "form", 0), chosen(page, "form", 1)) == ("graph", "cpp")
    kernel = configuration["kernels"][0]
    urls = {"graph": kernel["source"]["url"], "cpp": kernel["targets"]["cpu"]["forms"]["cpp"]}
    for pane, (form, url) in zip(listings(page), urls.items(), strict=True):
        expect(pane).to_have_attribute("aria-label", re.compile(re.escape(index["forms"][form])))
        expect(pane).to_have_attribute("aria-busy", "false")
        expect(pane.locator(".rp-code-keyword").first).to_be_attached()
        assert pane.evaluate(TEXT) == read(site, url, COMPILER[1]).rstrip().split("\n")
    assert viewer(page).get_by_role("radio").count() == len(kernel["targets"]["cpu"]["values"])
    expect(page.locator(".rp-viewer__notes")).to_contain_text(kernel["provenance"])
    page.locator(".rp-viewer select[name=configuration]").select_option(index["configurations"][0]["id"])
    expect(page.locator(".rp-viewer select[name=target]")).to_have_value("sm_90")


def test_every_fact_says_why_it_matters(site: Site, page: Page, index: dict, example: Example) -> None:
    opened(page, site.address + PAGE + example.address("sm_90"))
    facts = viewer(page).get_by_role("radio")
    assert facts.count() >= 6
    facts.first.focus()
    for _ in facts.all():
        page.keyboard.press("ArrowRight")
        key = page.locator(":focus").get_attribute("value")
        why = next(fact["why"] for fact in index["facts"] if fact["key"] == key)
        expect(page.locator(".rp-viewer__why")).to_have_text(why)


# ---- keys, touch, failures ------------------------------------------------------------------------------------------


def test_the_keyboard_is_enough(site: Site, page: Page, example: Example) -> None:
    page.goto(site.address + PAGE)
    link = page.locator("a[data-explorer]")
    link.focus()
    page.keyboard.press("Enter")
    source, made = listings(page)
    expect(source).to_be_focused()
    expect(source).to_have_attribute("aria-busy", "false")
    expect(made).to_have_attribute("aria-busy", "false")
    page.keyboard.press("Home")
    for _ in range(example.line - 1):
        page.keyboard.press("ArrowDown")
    assert lit(source) == [example.line]
    current = page.locator(f"#{source.get_attribute('aria-activedescendant')}")
    expect(current.locator("i")).to_have_attribute("data-at", str(example.line))
    page.keyboard.press("Enter")
    assert page.url.endswith(f"/L{example.line}")
    visited = []
    for key in "nnp":
        page.keyboard.press(key)
        visited.append(made.get_attribute("aria-activedescendant"))
    assert len(set(visited)) == min(2, len(lit(made)))
    page.keyboard.press("End")
    page.keyboard.press("PageUp")
    assert lit(source) == [example.line], "the pinned line went out"
    select = page.locator(".rp-viewer select[name=target]")
    while select.evaluate("(select) => select !== document.activeElement"):
        page.keyboard.press("Shift+Tab")
    before = select.input_value()
    page.keyboard.press("ArrowUp")
    expect(select).not_to_have_value(before)
    expect(made).to_have_attribute("aria-busy", "false")
    assert len(lit(made)) > 0, "the pinned line is not lit for the next target"
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(viewer(page)).to_be_hidden()
    expect(link).to_be_focused()
    assert page.url == site.address + PAGE


def test_on_a_phone_both_panes_are_in_sight(site: Site, browser: Browser, example: Example) -> None:
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    page = opened(context.new_page(), site.address + PAGE + example.address("sm_90"))
    assert page.evaluate(WIDTH) <= PHONE["width"]
    assert viewer(page).evaluate("(dialog) => dialog.scrollWidth") <= PHONE["width"]
    for pane in listings(page):
        box = pane.bounding_box()
        assert box
        assert box["height"] > 200, "a pane is too low to read in it"
        assert box["y"] + box["height"] <= PHONE["height"]
        assert box["width"] > 370
    source, made = listings(page)
    row(source, example.line).tap()
    assert lit(source) == [example.line]
    assert made.evaluate(IN_SIGHT)
    context.close()


def test_a_listing_that_cannot_be_loaded_says_so(site: Site, page: Page, example: Example) -> None:
    page.route("**/*.ttgir.txt", lambda route: route.fulfill(status=404))
    opened(page, site.address + PAGE + example.address("sm_90", "python", "ttgir"))
    source, made = listings(page)
    expect(made).to_contain_text("could not be loaded")
    expect(made.locator("a[href$='.ttgir.txt']")).to_be_visible()
    expect(source.locator("[role=option]").first).to_be_attached()


def test_an_index_that_cannot_be_loaded_leaves_a_link(site: Site, page: Page) -> None:
    page.route("**/index.json", lambda route: route.abort())
    page.goto(site.address + PAGE)
    page.locator("a[data-explorer]").click()
    expect(viewer(page)).to_contain_text("could not be loaded")
    expect(viewer(page).locator("a[href$='compiled/softmax/']")).to_be_visible()


def test_without_scripts_there_are_plain_listings(site: Site, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(site.address + WHOLE)
    page.locator("a[data-explorer]").click()
    expect(page).to_have_url(site.address + DATA)
    plain = page.locator("a[href$='.txt']")
    expect(plain.first).to_be_attached()
    address = urljoin(page.url, plain.first.get_attribute("href") or "")
    assert site.content(address.removeprefix(site.address)), "the link leads nowhere"
    context.close()


@pytest.mark.parametrize("forms", [("python", "sass"), ("ttgir", "ptx")])
def test_axe_finds_nothing_serious_in_the_viewer(
    site: Site, page: Page, example: Example, forms: tuple[str, str]
) -> None:
    page.emulate_media(reduced_motion="reduce")
    opened(page, site.address + PAGE + example.address("sm_90", *forms, f"L{example.line}"))
    page.evaluate("""for (const chunk of document.querySelectorAll('.rp-viewer__chunk'))
        if (!chunk.querySelector('.rp-lit')) chunk.remove()""")
    page.evaluate(f"{LOOKS}\nrpLight()")
    _, problems = in_both_modes(page, [], "'dialog.rp-viewer'")
    assert not problems, "\n".join(problems)
