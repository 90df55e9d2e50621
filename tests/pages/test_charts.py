"""Charts say and draw what the records hold; a spec that means nothing, or too much, is refused."""

import json
import re
from itertools import pairwise

import altair
import pytest
from jsonschema import ValidationError

from docs.publish.errors import PublishError
from docs.publish.evidence import Evidence
from docs.publish.macros import charts
from docs.publish.macros.charts import marks, panels, svg, vega
from docs.publish.macros.charts.height import apart
from docs.publish.place import Place
from tests.benchmarks.source import ROOT
from tests.pages.tiny import LAPTOP, TIMING, read, record, row, took

READ = "docs/pages", "snippets/**/*.py", "tests/benchmarks"  # through docs.publish

BARS = {"kind": "bars", "case": "kernels/add", "metric": "bandwidth"}
PLACE = Place("kernels/add.md", "kernels/add/")
LINES = {"kind": "lines", "case": "kernels/add", "metric": "time", "x": "columns"}


def drawn(root, spec: dict, *records: dict) -> str:
    return charts.render(spec, read(root, *(records or [record(root)])), Evidence(PLACE))


def titles(html: str) -> list[str]:
    return re.findall(r'class="rp-chart__title">(.*?)</div>', html)


def spec_of(html: str, size: str = "wide") -> dict:
    found = re.search(rf'rp-chart__plot--{size}".*?class="rp-chart__spec">(.*?)</script>', html)
    assert found
    return json.loads(found[1])


def scaling(root, *variants: str) -> dict:
    """Times over three widths: of each variant its place in the list times the width, in milliseconds."""
    return record(
        root,
        [
            row(root, variant=name, shape={"rows": 8, "columns": columns}, time=took(place * columns))
            for place, name in enumerate(variants, 1)
            for columns in (1, 4, 16)
        ],
    )


def test_the_title_is_computed_from_the_record(root):
    title = "Ours moves {ours}, {ours/eager} of eager; the ceiling is {ceiling}"
    assert titles(drawn(root, BARS | {"title": title})) == [
        "Ours moves 2.00 TB/s, 2.00× of eager; the ceiling is 4.00 TB/s"
    ]


def test_who_divides_the_numbers_shown_is_told_why_the_last_digit_differs(root):
    said = "Ratios are of unrounded times."
    assert drawn(root, BARS | {"title": "{ours/eager} of eager", "note": "Eight."}).count(f"Eight. {said}") == 1
    assert said not in drawn(root, BARS | {"title": "Ours moves {ours}", "note": "Eight."})


def test_a_title_of_lines_names_its_place(root):
    html = drawn(root, LINES | {"title": "{ours@4}, at last {ours}"}, scaling(root, "ours", "eager"))
    assert titles(html) == ["4.00 ms, at last 16.0 ms"]


def test_bars_are_sorted_best_first_whichever_way_is_better(root):
    for metric, first in (("bandwidth", "ours"), ("time", "ours"), ("error", "eager")):
        rows = [row(root), row(root, variant="eager", time=took(2), error={"value": 1e-4, "bound": 1})]
        data = spec_of(drawn(root, BARS | {"metric": metric}, record(root, rows)), "wide")
        marks = (layer["data"]["values"] for layer in data["layer"] if "data" in layer)
        values = next(rows for rows in [*marks, data.get("data", {}).get("values")] if rows and "variant" in rows[0])
        assert values[0]["variant"] == first, metric


def test_bars_and_their_ceiling_are_drawn_in_one_unit(root):
    spec = spec_of(drawn(root, BARS), "wide")
    bars = {mark["variant"]: (mark["low"], mark["value"], mark["high"]) for mark in spec["data"]["values"]}
    assert bars["ours"] == pytest.approx((2 / 1.2, 2.0, 2 / 0.9))
    assert bars["eager"] == pytest.approx((1 / 1.2, 1.0, 1 / 0.9))
    assert spec["layer"][0]["data"]["values"][0] == {"value": 4.0, "text": "measured copy ceiling 4.00 TB/s"}
    assert spec["layer"][0]["encoding"]["x"]["scale"]["domain"] == [0, 4.0]


@pytest.mark.parametrize("kind", ["bars", "lines"])
def test_what_is_drawn_is_vega_lite(kind, root):
    """By its schema, which Altair brings; vl-convert draws what it understands and is silent about the rest."""
    content = scaling(root, "ours", "eager") if kind == "lines" else record(root)
    html = drawn(root, (LINES if kind == "lines" else BARS) | {"kind": kind}, content)
    assert altair.SCHEMA_VERSION.startswith(f"v{vega.VERSION}.")
    for size in ("wide", "narrow"):
        spec = spec_of(html, size)
        altair.LayerChart.from_dict(spec, validate=True)
        spec["layer"][0]["mark"]["strokeWith"] = 2
        with pytest.raises(ValidationError):
            altair.LayerChart.from_dict(spec, validate=True)


def test_every_machine_has_its_own_panel_and_only_the_pages_machine_its_title_and_note(root):
    laptop = record(root, machine=LAPTOP, id="laptop", rows=[row(root, mode="calls", time=took(3))])
    spec = BARS | {"title": "Ours moves {ours}", "mode": "device", "note": "Eight rows.", "variants": ["ours"]}
    html = drawn(root, spec, record(root), laptop)
    assert re.findall(r'data-machine="([^"]+)"', html) == ["nvidia-h100-80gb-hbm3", "laptop"]
    assert titles(html) == ["Ours moves 2.00 TB/s", "A laptop: ours, 667 GB/s"]
    assert html.count("Eight rows.") == 1 and html.index("Eight rows.") < html.index('data-machine="laptop"')


@pytest.mark.parametrize("metric", ["time", "bandwidth"])
def test_of_another_machine_is_said_who_is_ahead(metric, root):
    rows = [row(root, mode="calls", time=took(3)), row(root, mode="calls", variant="eager", time=took(2))]
    laptop = record(root, machine=LAPTOP, id="laptop", rows=rows)
    _, title = titles(drawn(root, BARS | {"title": "{ours}", "metric": metric, "mode": "device"}, record(root), laptop))
    assert title.startswith("A laptop: eager is ahead with ")


# ---- where a drawing would show nothing -----------------------------------------------------------------------------


def near(root, *parts: float) -> dict:
    """Variants that reach these parts of the ceiling of 4 TB/s, each within a hundredth."""
    names = ("eager", "compile", "ours")
    times = [{"p20": 0.5e-3 / part / 1.005, "p50": 0.5e-3 / part, "p80": 0.5e-3 / part / 0.995} for part in parts]
    return record(
        root,
        [row(root, variant=name, time=TIMING | time) for name, time in zip(names[-len(times) :], times, strict=True)],
    )


@pytest.mark.parametrize(("metric", "begins"), [("bandwidth", "3.3 TB/s"), ("share", "80%")])
def test_what_lies_near_the_ceiling_is_zoomed_into_as_dots_and_says_so(metric, begins, root):
    html = drawn(root, BARS | {"metric": metric}, near(root, 0.87, 0.95, 0.98))
    for size in ("wide", "narrow"):
        spec = spec_of(html, size)
        kinds = [layer["mark"]["type"] for layer in spec["layer"]]
        assert "point" in kinds and "bar" not in kinds, "a bar is as long as its value"
        low, high = spec["layer"][0]["encoding"]["x"]["scale"]["domain"]
        assert low == pytest.approx(float(begins.split()[0].rstrip("%"))) and 0.75 * high < low < 0.87 * high
    assert html.count(f"the axis begins at {begins}") == 4, "drawn twice, and each time told how to be drawn again"
    assert f"The axis begins at {begins}.</div>" in html


def test_lines_near_the_ceiling_begin_there_too(root):
    rows = [each | {"shape": {"rows": 8, "columns": columns}} for columns in (1, 4, 16)
            for each in near(root, 0.87, 0.95)["rows"]]  # fmt: skip
    html = drawn(root, LINES | {"metric": "share"}, record(root, rows))
    scale = next(
        layer["encoding"]["y"]["scale"] for layer in spec_of(html, "wide")["layer"] if layer["mark"]["type"] == "line"
    )
    assert scale["domain"][0] == 80 and "The axis begins at 80%.</div>" in html


def test_one_that_is_far_from_the_ceiling_keeps_the_axis_at_zero(root):
    html = drawn(root, BARS, near(root, 0.65, 0.95, 0.98))
    assert spec_of(html, "wide")["layer"][0]["encoding"]["x"]["scale"]["domain"][0] == 0
    assert "begins at" not in html


def words_of(html: str) -> list[str]:
    return re.findall(r'class="rp-chart__words">(.*?)</p>', html)


def test_few_points_of_a_line_are_told_in_words_with_their_table(root):
    whole = scaling(root, "ours", "eager")
    few = record(root, [each for each in whole["rows"] if each["shape"]["columns"] < 16], machine=LAPTOP, id="laptop")
    html = drawn(root, LINES, whole, few)
    home, other = html.split('data-machine="laptop"')
    assert "<svg" in home and not words_of(home)
    assert "<svg" not in other and other.count('class="rp-number"') == 4
    assert words_of(other) == [
        "The numbers of A laptop are not drawn: a line needs 3 points at least, and there are 2. "
        "The table below has them."
    ]


def test_a_contest_with_one_side_is_told_in_words(root):
    laptop = record(root, [row(root, mode="calls")], machine=LAPTOP, id="laptop")
    html = drawn(root, BARS | {"mode": "device"}, record(root), laptop)
    assert ["only ours was measured, and nothing beside it" in said for said in words_of(html)] == [True]
    assert not words_of(drawn(root, BARS | {"mode": "device", "better": False}, record(root), laptop))


def test_the_winner_of_a_contest_and_what_ties_with_it_stand_out(root):
    rows = [row(root, variant=name, time=took(time)) for name, time in (("ours", 1), ("eager", 3), ("compile", 1))]
    spec = BARS | {"metric": "time"}
    for more, winners in (({}, {"ours", "compile"}), ({"better": False}, {"ours", "eager", "compile"})):
        values = spec_of(drawn(root, spec | more, record(root, rows)), "wide")["data"]["values"]
        assert {each["variant"] for each in values if each["wins"]} == winners


@pytest.mark.parametrize(("spread", "told"), [(0.5, True), (0.3, False)])
def test_noisy_numbers_are_told_in_words(spread, told, root):
    time = TIMING | {"p20": (1 - spread / 2) * 1e-3, "p80": (1 + spread / 2) * 1e-3}
    rows = [row(root, variant=name, time=time) for name in ("ours", "eager", "compile")]
    said = words_of(drawn(root, BARS | {"metric": "time"}, record(root, rows)))
    assert ["spread over 50.0% of their value or more" in each for each in said] == [True] * told


def test_over_shares_the_ceiling_is_one(root):
    assert titles(drawn(root, BARS | {"metric": "share", "title": "{ours} of {ceiling}"})) == ["50.0% of 100%"]


def test_a_line_that_ends_early_is_named_where_it_ends(root):
    content = scaling(root, "ours", "eager")
    content["rows"] = [row for row in content["rows"] if (row["variant"], row["shape"]["columns"]) != ("eager", 16)]
    ends = [
        value
        for layer in spec_of(drawn(root, LINES, content), "wide")["layer"]
        for value in layer.get("data", {}).get("values", [])
        if "place" in value
    ]
    assert {end["label"].split()[0]: end["x"] for end in ends} == {"ours": 16, "eager": 4}


def test_labels_are_pushed_apart_and_stay_inside():
    places = apart([10, 11, 12, 299], 17, 300)
    assert all(lower - upper >= 16.5 for upper, lower in pairwise(places))
    assert places[0] >= 0 and places[-1] <= 300


def test_the_name_of_a_ceiling_begins_at_the_left_where_it_does_not_fit_before_the_line(root, monkeypatch):
    monkeypatch.setitem(marks.MIXES, "copy", "measured ceiling of one read per write")
    html = drawn(root, BARS)
    names = {size: spec_of(html, size)["layer"][1] for size in ("wide", "narrow")}
    assert {size: name["mark"]["align"] for size, name in names.items()} == {"wide": "right", "narrow": "left"}
    assert names["narrow"]["encoding"]["x"] == {"value": 0}


def test_colours_are_variables_and_nothing_else(root):
    html = drawn(root, BARS | {"title": "{ours}"})
    assert "var(--rp-ours)" in html and "var(--rp-ceiling)" in html
    assert not re.findall(r'(?:fill|stroke)="#[0-9a-f]+"', html), "a colour that does not follow the mode"


def test_the_table_has_every_number_with_its_evidence(root):
    evidence = Evidence(PLACE)
    html = charts.render(BARS, read(root, record(root)), evidence)
    assert [entry["value"] for entry in evidence.entries.values()] == ["2.00 TB/s", "1.00 TB/s"]
    assert html.count('class="rp-number"') == 2


def test_what_is_stale_is_said_and_told_to_the_release(root):
    (root / "kernels" / "add.py").write_text("def add(a, b):\n    return b + a\n")
    evidence = Evidence(PLACE)
    old = record(
        root, [row(root, sources={"hash": "old", "files": ["kernels/add.py", "tests/benchmarks/kernels/add.py"]})]
    )
    html = charts.render(BARS, read(root, old), evidence)
    assert '<span class="rp-badge">stale</span> ours: the code has changed since.' in html
    assert evidence.stale
    said = panels.changed({"a": "code", "b": "timing method", "c": "code"})
    assert said.endswith("a, c: the code has changed since. b: the timing method has changed since.")


@pytest.mark.parametrize(
    "wrong, expected",
    [
        ({"kind": "pie"}, "chart: kind: expected one of bars, lines"),
        ({"metric": "speed"}, "chart: metric: expected one of"),
        ({"case": "kernels/ad"}, "did you mean kernels/add"),
        ({"colour": "red"}, "chart: expected one of"),
        ({"title": "{theirs}"}, "chart: title: expected one of eager, ours, ceiling"),
        ({"variants": ["liger"]}, "chart: expected rows to draw, got none"),
        ({"shape": "1x1"}, "shape of kernels/add: expected one of 8x4"),
        (LINES | {"x": "width"}, "chart: x: expected one of rows, columns"),
        (LINES | {"title": "{ours@5}"}, "chart: title: columns of ours: expected one of 4"),
    ],
)
def test_misuse_is_refused(root, wrong, expected):
    with pytest.raises(PublishError, match=re.escape(expected)):
        drawn(root, BARS | wrong)


def test_lines_refuse_two_shapes_at_one_x(root):
    rows = [row(root, shape={"rows": rows, "columns": 4}) for rows in (8, 16)]
    with pytest.raises(PublishError, match="expected one shape for each columns, got 8x4 and 16x4"):
        drawn(root, LINES, record(root, rows))


def test_the_bundle_asks_no_other_host():
    """Its own addresses are links of menus that we turn off."""
    asked = set(re.findall(r"""(?:fetch|import|src=)\(?["'](https?://[^"']+)""", svg.bundle()))
    assert not asked
    assert (ROOT / ".cache" / "charts").is_dir()
