"""The calculator of a decoding step: it gives back what was measured, refuses what was not, and needs no mouse."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from docs.publish import units
from docs.publish.records.measured import Coordinates, Measured
from tests.pages.conftest import everything
from tests.site.conftest import DESKTOP, Site

PAGE = "examples/generation/"
WAYS = "triton", "graph"
MAIN, OTHER = "nvidia-h100-80gb-hbm3", "nvidia-h200"
CORNERS = [(layers, width, inner) for layers in (16, 32) for width, inner in ((2048, 8192), (4096, 14336))]


def data(page: Page) -> dict[str, Any]:
    return json.loads(page.locator(".rp-calculator script").text_content() or "")


def called(page: Page, site: Site, call: str, given: Any, name: str = "generation") -> Any:
    """What a call of a script's functions gives: "at.read(...)"."""
    module = f"{site.address}scripts/calculators/{name}.js"
    return page.evaluate(
        f"async ([module, given]) => {{ const at = await import(module); return {call} }}", [module, given]
    )


@pytest.fixture(scope="module")
def steps() -> list[Measured]:
    """What the records of the main machine say of whole steps, both ways."""
    rows = everything().select(Coordinates("examples/generation", machine=MAIN))
    return [row for row in rows if row.variant in WAYS and "layers" in row.row.shape]


def asked_of(step: Measured) -> dict[str, str]:
    """The fields that ask for a step."""
    model = "1B" if step.row.shape["width"] == 2048 else "8B"
    sizes = {name: str(step.row.shape[name]) for name in ("batch", "context")}
    return {"model": model, "dtype": step.row.part or "bf16", "gpu": MAIN} | sizes


def opened(site: Site, page: Page, url: str) -> Locator:
    """The calculator of a page."""
    page.goto("about:blank")  # else a page that is open stays as it is
    page.goto(f"{site.address}{url}#calculator")
    found = page.get_by_role("form", name="Calculator")
    expect(found).to_be_visible()
    return found


def as_it_begins(form: Locator) -> Locator:
    """A form that an earlier test filled in."""
    form.evaluate("(form) => { form.reset(); delete form.dataset.of; form.dispatchEvent(new Event('input')) }")
    return form


@pytest.fixture(scope="module")
def shown(site: Site, tab: Page) -> Locator:
    tab.set_viewport_size(DESKTOP)  # the last test may have left a phone's
    return opened(site, tab, PAGE)


@pytest.fixture
def form(shown: Locator) -> Locator:
    return as_it_begins(shown)


ASK = """(form, fields) => {
    for (const [name, value] of Object.entries(fields)) {
        const field = form.elements[name]
        if (!field.checkVisibility() || field.disabled) throw new Error(`${name} cannot be filled in`)
        field.value = value
        if (field.options && field.value !== value) throw new Error(`${name} has no option ${value}`)
        field.dispatchEvent(new Event("input", { bubbles: true }))
    }
}"""  # one call for all fields, as a reader fills them in


def ask(form: Locator, **fields: str) -> None:
    """Fill in fields by their names."""
    form.evaluate(ASK, fields)


def row(form: Locator, name: str) -> str:
    return form.locator(f"[data-row={name}]").inner_text()


def test_the_formula_gives_the_bytes_of_every_recorded_step(site: Site, form: Locator, steps: list[Measured]) -> None:
    assert {step.row.part for step in steps} == {"", "int8", "fp8", "int4"} and len(steps) > 15
    models = data(form.page)["models"]
    for step in steps:
        fields = asked_of(step)
        given = [models[fields["model"]], fields["dtype"], int(fields["batch"]), int(fields["context"])]
        read = called(form.page, site, "at.read(...given)", given)
        assert read["weights"] + read["cache"] == step.row.bytes_read, step


def test_the_presets_give_the_recorded_steps_back(form: Locator, steps: list[Measured]) -> None:
    for step in steps:
        ask(form, **asked_of(step))
        time, share = step.published("time"), step.published("share")
        assert time and share
        tokens = units.text(step.row.shape["batch"] / time.value, "")
        shown = row(form, step.variant)
        assert shown.startswith(f"{tokens} tokens/s ±") and f", measured: {time.text} a step" in shown, step
        assert shown.endswith(f", {share.text} of the bound"), step


def test_between_two_steps_the_error_covers_both(form: Locator) -> None:
    def shown() -> tuple[float, float]:
        said = re.search(r"± ([\d.]+)%, .*, ([\d.]+)% of the bound", row(form, "triton"))
        assert said, row(form, "triton")
        return float(said[1]) / 100, float(said[2])

    ask(form, model="1B")
    small = shown()[1]
    ask(form, model="8B")
    large = shown()[1]
    ask(form, model="own", layers="28", width="3072", heads="24")
    error, share = shown()
    assert "expected between 1B and 8B" in row(form, "triton")
    assert small < share < large and share * (1 + error) > large and share * (1 - error) < small


def test_the_error_covers_a_fixed_time_for_each_layer(site: Site, form: Locator) -> None:
    """Were a step a time for each layer and one for each byte, what the form says of other shapes would hold."""
    page = form.page
    known = data(page)
    for way in WAYS:
        for dtype in ("bf16", "int8", "fp8", "int4"):
            points = called(page, site, "at.measured(...given)", [known, MAIN, way, dtype])
            small, large = (next(p for p in points if p["model"] == name and p["batch"] == 1) for name in ("1B", "8B"))
            per_byte = (large["seconds"] - 2 * small["seconds"]) / (large["bytes"] - 2 * small["bytes"])
            per_layer = (small["seconds"] - per_byte * small["bytes"]) / 16
            for layers, width, inner in CORNERS:
                sizes = known["models"]["1B"] | {"layers": layers, "width": width, "inner": inner}
                read = called(page, site, "at.read(...given)", [sizes, dtype, 1, 512])
                asked = {"sizes": sizes, "shape": "", "batch": 1, "context": 512, "bytes": sum(read.values())}
                found = called(page, site, "at.expected(...given)", [points, asked])
                truth = per_layer * layers + per_byte * asked["bytes"]
                assert found is None or abs(found["seconds"] / truth - 1) <= found["error"], (way, dtype, layers, width)


@pytest.mark.parametrize(
    "fields",
    [
        {"context": "4096"},
        {"context": "100"},
        {"model": "8B", "batch": "8"},
        {"model": "1B", "dtype": "fp8", "batch": "2"},
        {"model": "own", "layers": "8"},
        {"model": "own", "layers": "40"},
        {"model": "own", "layers": "33", "inner": "13000"},
        {"gpu": OTHER, "context": "4096"},
        {"model": "parameters"},
    ],
)
def test_outside_of_what_was_measured_there_is_the_bound_only(form: Locator, fields: dict[str, str]) -> None:
    ask(form, **fields)
    assert "tokens/s" in row(form, "bound")
    for way in WAYS:
        assert row(form, way).startswith("Bound only: ") and "tokens/s" not in row(form, way)


def test_a_refusal_says_what_was_measured(form: Locator) -> None:
    ask(form, model="8B", batch="8")
    assert row(form, "triton").endswith("we timed 1B at batch 1 and 8B at batch 1, with 512 tokens of context.")
    assert "1B at batch 1, 8, 64 and 8B at batch 1" in row(form, "graph")


def test_a_bandwidth_of_ones_own_gives_the_bound(form: Locator) -> None:
    ask(form, gpu="")
    ask(form, bandwidth="1000")
    assert row(form, "bound") == "66.3 tokens/s: 15.1 ms a step"  # 15.08 GB at 1000 GB/s
    assert all(row(form, way).startswith("Bound only: ") for way in WAYS)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"batch": "65"}, "Batch: "),
        ({"batch": ""}, "Batch: "),
        ({"context": "1.5"}, "Context, tokens: "),
        ({"model": "own", "heads": "30"}, "Expected a hidden width in steps"),
        (
            {"model": "own", "heads": "20", "width": "4000", "dtype": "int4", "shared": "4"},
            "Expected widths",
        ),
    ],
)
def test_what_cannot_be_computed_is_said(form: Locator, fields: dict[str, str], said: str) -> None:
    ask(form, **fields)
    assert row(form, "bytes").startswith(said) and row(form, "bound") == row(form, "triton") == "–"


def test_keys_alone_reach_it_and_what_changes_is_read_out(form: Locator) -> None:
    page = form.page
    form.get_by_role("combobox", name="Model").focus()
    page.keyboard.press("ArrowUp")
    for _ in range(2):
        page.keyboard.press("Tab")
    expect(form.get_by_role("spinbutton", name="Batch", exact=True)).to_be_focused()
    page.keyboard.type("8")
    live = form.locator("[aria-live=polite]")
    expect(live).to_contain_text("Bound only: we timed 1B at batch 1 and 8B at batch 1")
    assert ", measured: " in row(form, "graph")
    assert live.locator("[data-row]").count() == 4


def test_without_scripts_the_page_has_the_formula_alone(site: Site) -> None:
    html = (site.content(f"{site.prefix}{PAGE}") or b"").decode()
    assert '<form hidden aria-label="Calculator">' in html and "4 * batch * layers * kv * (context + 1)" in html
    text = (site.content(f"{site.prefix}{PAGE}index.md") or b"").decode()
    assert "4 * batch * layers * kv * (context + 1)" in text and "your shapes" not in text


def test_the_gpu_is_the_one_that_the_reader_has_chosen(site: Site, page: Page) -> None:
    form = opened(site, page, PAGE)  # the last test here, as it leaves the page
    expect(form.locator("[name=gpu]")).to_have_value(MAIN)
    page.evaluate(f"localStorage.setItem('rp-machine', '{OTHER}')")
    page.reload()
    expect(form.locator("[name=gpu]")).to_have_value(OTHER)
    page.evaluate("localStorage.setItem('rp-machine', 'amd-epyc-2-cores')")  # no GPU
    page.reload()
    expect(form.locator("[name=gpu]")).to_have_value(MAIN)
