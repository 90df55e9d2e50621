"""The calculator of a step on several GPUs: it predicts what the snippet does, refuses what was not measured."""

import itertools
import json
import random
import re
from dataclasses import asdict
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from docs.publish.macros.calculators.multi_gpu import COMPILED
from docs.publish.records.captures import Captures
from snippets.examples.multi_gpu_measured import by_size
from snippets.examples.multi_gpu_predict import predict
from snippets.examples.multi_gpu_timeline import Work, timeline
from snippets.reference.communication import rates_of
from tests.site.conftest import DESKTOP, Site
from tests.site.test_calculator import as_it_begins, ask, called, data, opened, row

PAGE = "examples/multi-gpu/"
LARGE = {"layers": 24, "width": 4096, "inner": 14336, "shared": 1024, "vocabulary": 128256}  # the record has its shape
STEP = {"forward": 0.2, "backward": 0.3, "update": 0.05, "peak": 90e9}  # of no model
SHORT = STEP | {"forward": 0.02, "backward": 0.06}  # so that a layer's messages take longer than the layer


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    """Rates of two GPUs, runs on them, and the same on one."""
    return json.loads(Captures.load().find("examples/multi_gpu", "record", "gpu").content)


@pytest.fixture(scope="module")
def rates(record: dict[str, Any]) -> dict[int, dict]:
    """Seconds by bytes; of four GPUs gathers in bf16 and reductions in fp32."""
    links = Captures.load().find("reference/communication", "rates", "gpu").content
    two = by_size(record["rates"])
    gathers = {"all-gather": rates_of(links, 4, "bfloat16")["all-gather"]}
    return {2: dict(two), 4: {**rates_of(links, 4, "float32"), **gathers}}


@pytest.fixture(scope="module")
def shown(site: Site, tab: Page) -> Locator:
    tab.set_viewport_size(DESKTOP)  # the last test may have left a phone's
    return opened(site, tab, PAGE)


@pytest.fixture
def form(shown: Locator) -> Locator:
    return as_it_begins(shown)


def offered(known: dict[str, Any], record: dict[str, Any]) -> list[tuple[str, dict]]:
    """The measured strategies, as the record names them, with what the form has of each."""
    both = [(name, how) for name in known["strategies"] for how in known["strategies"][name]]
    named = {COMPILED[how].format(name): known["strategies"][name][how] for name, how in both}
    return [(name, strategy) for name, strategy in named.items() if name in record["runs"]]


def compare(site: Site, form: Locator, cases: list[tuple[list, dict]]) -> None:
    """What the script predicts from some arguments, with what the snippet predicts."""
    call = "given.map(([sizes, ...rest]) => at.predict(at.shapeOf(sizes), ...rest))"
    found = called(form.page, site, call, [given for given, _ in cases], "multi_gpu")
    for one, (_, expected) in zip(found, cases, strict=True):
        assert [tuple(message) for message in one["messages"]] == expected["messages"]
        numbers = (expected.keys() & one.keys()) - {"messages"}
        assert numbers == {"communication", "exposed", "step", "parameters", "state", "rest", "peak"}
        assert {part: one[part] for part in numbers} == pytest.approx({part: expected[part] for part in numbers})


def test_the_script_predicts_each_measured_strategy_as_the_snippet_does(
    site: Site, form: Locator, record: dict, rates: dict
) -> None:
    known, bases = data(form.page), record["bases"]
    strategies = offered(known, record)
    assert len(strategies) == 7
    sizes = known["sizes"] | {"tied": True, "tokens": known["tokens"]}
    compare(
        site,
        form,
        [
            ([sizes, strategy, strategy["alone"], known["rates"][str(n)], n], predict(name, bases[name], rates[n], n))
            for name, strategy in strategies
            for n in (2, 4)
        ],
    )


def test_the_script_predicts_another_model_as_the_snippet_does(
    site: Site, form: Locator, record: dict, rates: dict
) -> None:
    known, shape = data(form.page), record["runs"]["FSDP2, large"]["shape"]
    parameters = 4 * (sum(map(sum, shape["layers"])) + shape["root"])
    sizes = LARGE | {"tied": True, "tokens": shape["tokens"]}
    cases = []
    for (name, strategy), step in itertools.product(offered(known, record), (STEP, SHORT)):
        base = {"shape": shape, "parameters": parameters, "state": 2 * parameters, **step}
        cases.append(([sizes, strategy, step, known["rates"]["2"], 2], predict(name, base, rates[2], 2)))
    compare(site, form, cases)


def test_compute_and_link_overlap_in_the_script_as_in_the_snippet(site: Site, form: Locator) -> None:
    """In steps of all kinds: a model's layers are alike."""
    draw = random.Random(0)

    def some(operation: str) -> list[tuple[str, float]]:
        return [(operation, draw.randint(1, 9)) for _ in range(draw.randint(0, 1))]

    steps = [[Work(draw.randint(0, 5), some("all-gather"), some("all-reduce")) for _ in range(6)] for _ in range(99)]
    call = "given.map((works) => at.timeline(works, ([, took]) => took))"
    found = called(form.page, site, call, [[asdict(work) for work in works] for works in steps], "multi_gpu")
    rates = {operation: {0: 0.0, 10: 10.0} for operation in ("all-gather", "all-reduce")}
    assert found == [timeline(works, rates) for works in steps]


def test_each_measured_strategy_says_how_far_its_prediction_is_off(form: Locator, record: dict, rates: dict) -> None:
    for name, _ in offered(data(form.page), record):
        strategy = name.removeprefix("blocks, ").removesuffix(", whole")
        (how,) = (how for how, run in COMPILED.items() if run.format(strategy) == name)
        ask(form, strategy=strategy, compiled=how)
        run, guess = record["runs"][name], predict(name, record["bases"][name], rates[2], 2)
        assert float(row(form, "step").split(" ms")[0]) == pytest.approx(1e3 * guess["step"], rel=3e-3)
        said = re.search(r"For Llama 1B, we measured (?:([\d.]+)% (more|less)|the same)", row(form, "step"))
        assert said, name
        part = float(said[1] or 0) * (-1 if said[2] == "less" else 1)
        assert part == pytest.approx(100 * (run["step"] / guess["step"] - 1), rel=0.05, abs=0.5), name
        assert "we measured " in row(form, "memory") and "we measured " in row(form, "exposed")


def test_four_gpus_are_compared_where_they_were_measured(form: Locator, record: dict, rates: dict) -> None:
    more = Captures.load().find("examples/multi_gpu", "more", "gpu").content
    (measured,) = re.findall(r"^4 GPUs, DDP .* ([\d.]+) +[-+]\d+% ", more, re.M)
    ask(form, gpus="4")
    part = 100 * (float(measured) / 1e3 / predict("DDP", record["bases"]["DDP"], rates[4], 4)["step"] - 1)
    said = re.search(r"we measured ([\d.]+)% more", row(form, "step"))
    assert said and float(said[1]) == pytest.approx(part, rel=0.05)
    ask(form, compiled="each block")
    assert row(form, "step").endswith("We did not measure this strategy on 4 GPUs.")


OWN = {"model": "own", "forward": "200", "backward": "300", "update": "50", "peak": "70"}
TINY = {"width": "16", "inner": "4", "shared": "4"}
WIDE = {"width": "4096", "inner": "14336", "shared": "1024"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        # first, for the form keeps a step that was filled in
        ({"model": "own"}, "Fill in your step on one GPU: forward, backward, update and peak."),
        ({"gpus": "8"}, "We measured 2 and 4 GPUs only."),
        (
            OWN | WIDE | {"gpus": "4"},
            "We measured all-reduce messages of 8.00 KiB to 1.00 GiB. ",
        ),
        (OWN | WIDE | {"embeddings": "untied", "strategy": "FSDP2"}, "We measured reduce-scatter messages of 8.00 KiB"),
        (
            OWN | TINY | {"strategy": "FSDP2"},
            "We measured all-gather messages of 8.00 KiB to 2.00 GiB. ",
        ),
        (OWN | {"peak": "300"}, "It does not fit: the GPU has "),
        (OWN | {"peak": "13"}, "Peak memory: expected more than the 18.4 GiB of parameters and state, got 13.0 GiB."),
        ({"tokens": "4096"}, "Fill in your step on one GPU: forward, backward, update and peak."),
        (OWN | {"embeddings": "untied"}, "DDP: tied embeddings only."),
        ({"gpus": "1"}, "GPUs: "),
        ({"model": "own", "layers": ""}, "Layers: "),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_one_line(form: Locator, fields: dict[str, str], said: str) -> None:
    ask(form, **fields)
    assert row(form, "step").startswith(said), row(form, "step")
    assert "tokens/s" not in row(form, "step")


def test_outside_of_what_was_measured_bytes_remain(form: Locator) -> None:
    ask(form, gpus="8")
    assert row(form, "bytes") == "8.65 GB in 65 messages"  # as the section "scale" computes them
    assert row(form, "communication") == row(form, "memory") == "–"


def test_keys_alone_reach_it_and_what_changes_is_read_out(form: Locator) -> None:
    page = form.page
    form.get_by_role("combobox", name="Strategy").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    expect(form.get_by_role("combobox", name="Compiled")).to_be_focused()
    page.keyboard.press("Tab")
    expect(form.get_by_role("spinbutton", name="1 GPU: forward, ms")).to_be_focused()
    live = form.locator("[aria-live=polite]")
    expect(live).to_contain_text("4.68 GB in 50 messages")
    assert live.locator("[data-row]").count() == 6


def test_without_scripts_the_page_names_the_command(site: Site) -> None:
    html = (site.content(f"{site.prefix}{PAGE}") or b"").decode()
    assert '<form hidden aria-label="Calculator">' in html
    text = (site.content(f"{site.prefix}{PAGE}index.md") or b"").decode()
    section = text.partition("## Calculate your own step")[2].partition("\n## ")[0]
    assert "run `python -m snippets.examples.multi_gpu`" in section and "your model" not in section


def test_a_step_that_was_filled_in_comes_back(site: Site, page: Page) -> None:
    form = opened(site, page, PAGE)  # the last test here, as it leaves the page
    ours = form.locator("[name=forward]").input_value()
    ask(form, **OWN)
    own = row(form, "step")
    assert "tokens/s" in own and row(form, "alone").startswith("Measure yours: ")
    ask(form, model="measured")
    expect(form.locator("[name=forward]")).to_have_value(ours)
    assert row(form, "alone").startswith("Ours: ")
    ask(form, model="own", strategy="FSDP2")
    expect(form.locator("[name=forward]")).to_have_value("")  # each strategy has a base of its own
    ask(form, strategy="DDP")
    assert row(form, "step") == own
