"""The roofline is drawn from records: roofs, ridge point and every point; and names lie on nothing."""

import itertools
from pathlib import Path
from typing import Any

import altair
import pytest

from docs.publish.errors import PublishError
from docs.publish.evidence import Evidence
from docs.publish.macros.charts import roofline, vega
from docs.publish.macros.charts.height import Height
from docs.publish.macros.charts.roofline import names
from docs.publish.macros.charts.roofline.plot import Asked
from docs.publish.macros.charts.roofline.plot import plot as of_machine
from docs.publish.place import Place
from tests.pages import tiny
from tests.pages.test_charts import spec_of
from tests.pages.tiny import LAPTOP, read, record, row, took

READ = "docs/pages", "snippets/**/*.py", "tests/benchmarks"  # through docs.publish

LINE = {"case": "validation/roofline", "variant": "product", "along": "rows"}
PAGE = "---\ntitle: Sum\ntypical: 8x4\n---\n\n# Sum\n"
PLACE = Place("validation/roofline.md", "validation/roofline/")


@pytest.fixture
def root(root: Path) -> Path:
    (root / "docs/pages/kernels").mkdir()
    (root / "docs/pages/kernels/add.md").write_text(PAGE)
    return root


def product(root: Path, rows: int, intensity: int, rate: float, **changed: Any) -> dict:
    """A product of a gigabyte."""
    moved: dict[str, Any] = {"bytes_read": 6 * 10**8, "bytes_written": 4 * 10**8, "flops": intensity * 10**9}
    moved["time"] = took(intensity * 10**12 / rate)
    sources = {"sources": {"hash": "old", "files": ["kernels/add.py"]}}
    where = {"case": "validation/roofline", "variant": "product", "shape": {"rows": rows, "inner": 8}}
    return row(root, **where, **moved, **sources, **changed)


def products(root: Path) -> list[dict]:
    return [product(root, 1, 1, 3e12), product(root, 64, 50, 1e14), product(root, 8192, 1000, 7e14)]


def sums(root: Path) -> list[dict]:
    """A kernel at half a FLOP per byte: ours at a TFLOP/s, eager at half of it."""
    return record(root)["rows"]


def drawn(root: Path, *records: dict, **spec: Any) -> str:
    known = read(root, *(records or (record(root, products(root) + sums(root)),)))
    return roofline.render(LINE | spec, known, Evidence(PLACE), root)


def layers(spec: dict, kind: str) -> list[list[dict]]:
    """The data of all layers of a kind, in the order in which they are drawn."""
    return [layer.get("data", {}).get("values", []) for layer in spec["layer"] if layer["mark"]["type"] == kind]


def test_both_axes_are_logarithmic_and_both_roofs_meet_at_the_ridge_point(root: Path):
    spec = spec_of(drawn(root))
    scales = [layer["encoding"][axis]["scale"] for layer in spec["layer"] for axis in "xy" if "scale" in
              layer["encoding"].get(axis, {})]  # fmt: skip
    assert {scale["type"] for scale in scales} == {"log"}
    outline = layers(spec, "line")[0]
    low, high = outline[0]["x"], outline[-1]["x"]
    assert low <= 0.5 and high >= 1000
    # 4 TB/s of a copy and 800 TFLOP/s of a burst; the axis is in TFLOP/s
    assert outline == [{"x": low, "y": 4 * low}, {"x": 200, "y": 800}, {"x": high, "y": 800}]
    words = {value["text"] for values in layers(spec, "text") for value in values}
    assert {"ridge point", "200 FLOP/byte", "memory: 4.00 TB/s", "arithmetic, bfloat16: 800 TFLOP/s"} <= words


def test_points_stand_where_their_bytes_flops_and_times_put_them(root: Path):
    line, stems, _ = layers(spec_of(drawn(root)), "point")
    assert [point["y"] for point in line] == pytest.approx([3, 100, 700]) and line[2]["x"] == 1000
    assert {point["label"]: (point["x"], point["y"]) for point in stems} == {"ours": (0.5, 1), "eager": (0.5, 0.5)}


@pytest.mark.parametrize(("intensity", "said"), [(1, "All 1 stand left of 200 FLOP/byte"), (3000, "0 1 stand left")])
def test_the_title_counts_the_kernels_on_either_side(intensity: int, said: str, root: Path):
    rows = [each | {"flops": intensity * 10**9} for each in sums(root)]
    html = drawn(root, record(root, products(root) + rows), title="{left} {kernels} stand left of {ridge}")
    assert f'rp-chart__title">{said}' in html


def test_every_number_of_the_table_has_its_evidence(root: Path):
    shown = Evidence(PLACE)
    roofline.render(LINE, read(root, record(root, products(root) + sums(root))), shown, root)
    entries = list(shown.entries.values())
    assert len(entries) == 3 + 2 * (3 + 2), "two roofs and the ridge point; of each point the intensity and the rate"
    (half, *_) = [entry for entry in entries if entry["value"] == "0.5 FLOP/byte"]
    assert half["formula"] == "flops / (bytes_read + bytes_written)"
    assert [each["value"] for each in half["inputs"]] == ["1,000,000,000"] * 3
    assert half["source_url"].endswith("tests/benchmarks/kernels/add.py")
    assert shown.stale, "the products' code has changed since"


def test_what_a_place_lacks_is_refused_on_the_published_machine_and_left_out_of_others(root: Path):
    point = ["small block", "first-speedup", ["better"], "2x2"]
    with pytest.raises(PublishError, match="roofline: small block: variant with bytes and FLOPs at 2x2, device"):
        drawn(root, points=[point])
    block = row(root, case="first-speedup", variant="better", shape={"d": 2, "h": 2}, flops=10**12)
    laptop = record(root, products(root), machine=LAPTOP | {"kind": "gpu"}, id="laptop")
    laptop["ceilings"] = laptop["ceilings"] | {"bandwidth": {"copy": tiny.CEILING | {"rate": 2e12}}}
    html = drawn(root, record(root, [*products(root), *sums(root), block]), laptop, points=[point])
    home, other = html.split('data-machine="laptop"')
    assert "small block" in home and "small block" not in other
    assert "A laptop: the ridge point lies at 400 FLOP/byte" in other


def test_a_machine_that_did_not_measure_the_line_has_no_roofline(root: Path):
    laptop = record(root, sums(root), machine=LAPTOP, id="laptop")
    assert 'data-machine="laptop"' not in drawn(root, record(root, products(root)), laptop)
    with pytest.raises(PublishError, match="roofline: expected rows of 'product' in validation/roofline, got none"):
        drawn(root, record(root))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"busy": "two others at work"}, "the machine was busy (two others at work)."),
        ({"time": tiny.TIMING | {"p20": 0.5e-3}}, "half of them spread over 70.0% of their value or more"),
    ],
)
def test_a_machine_whose_numbers_show_nothing_has_words_instead(changed: dict, said: str, root: Path):
    line = [each | changed for each in products(root)]
    html = drawn(root, record(root, products(root)), record(root, line, machine=LAPTOP | {"kind": "gpu"}, id="laptop"))
    home, other = html.split('data-machine="laptop"')
    assert "<svg" in home and "<svg" not in other
    assert f"The numbers of A laptop are not drawn: {said}" in other
    assert other.count("data-evidence=") == 9


def test_a_line_of_two_points_has_words_instead(root: Path):
    html = drawn(root, record(root, products(root)[:2]))
    assert "are not drawn: a line needs 3 points at least, and there are 2." in html


def test_all_points_lie_on_the_drawing(root: Path):
    """However far from the roofs they are."""
    rates = {1: 1e14, 2: 1e9, 4: 9e15, 8: 1e14}
    line = [product(root, rows, 2 * rows, rate) for rows, rate in rates.items()]
    spec = spec_of(drawn(root, record(root, line)))
    low, high = next(
        layer["encoding"]["y"]["scale"]["domain"] for layer in spec["layer"] if layer["mark"]["type"] == "point"
    )
    assert low < 1e-3 and high > 9e3


def test_a_word_that_is_none_is_refused(root: Path):
    with pytest.raises(PublishError, match="roofline: expected one of case, variant"):
        drawn(root, shape="8x4")
    with pytest.raises(PublishError, match="roofline: title: expected one of ridge"):
        drawn(root, title="{rigde}")


@pytest.mark.parametrize("size", ["wide", "narrow"])
def test_it_is_vega_lite(size: str, root: Path):
    altair.LayerChart.from_dict(spec_of(drawn(root), size), validate=True)


@pytest.mark.parametrize(("pixels", "decade"), [(668, 74), (298, 58)])
def test_no_name_lies_on_another_on_a_point_or_on_a_stem(pixels: int, decade: int, root: Path):
    """Twelve places within two factors of two on the slope, and six that crowd below the level roof."""
    crowd = []
    for index in range(12):
        shape = {"rows": 100 + index, "columns": 4}
        moved = {"flops": int(10**9 * (1 + 0.13 * index)), "shape": shape}
        crowd += [row(root, **moved), row(root, variant="eager", **moved, time=took(1.1 * (1 + index % 3)))]
    for index in range(6):
        crowd += [row(root, shape={"rows": 200 + index, "columns": 4}, flops=(5 + index) * 10**11)]
    points = [
        [f"a name of a place, {rows}", "kernels/add", ["eager", "ours"] if rows < 200 else ["ours"], f"{rows}x4"]
        for rows in [*range(100, 112), *range(200, 206)]
    ]
    known = read(root, record(root, products(root) + crowd))
    asked = Asked(**LINE, points=points, kernels=())
    plot = of_machine(asked, known, PLACE, root, "nvidia-h100-80gb-hbm3")
    across = names.Across.of([stem.intensity for stem in plot.every], pixels)
    above = Height(8e13, 8e14, True, decade)
    ends = names.ends(plot, [stem.name for stem in plot.stems], across, above.pixel)
    boxes, lines, dots = [], [], []
    for stem, end in zip(plot.stems, ends, strict=True):
        x, wide = across.pixel(stem.intensity), vega.room([stem.name]) * vega.SMALL / vega.TEXT
        left = x if stem.intensity <= 200 else x - wide
        boxes.append((left + 2, end - 6, left + wide - 2, end + 6))
        lines.append((x, above.pixel(stem.rates[-1]), x, end))
        dots += [(x - 2, above.pixel(rate) - 2, x + 2, above.pixel(rate) + 2) for rate in stem.rates]
    lowest = [above.pixel(stem.rates[-1]) for stem in plot.stems]
    assert all(end > low for end, low in zip(ends, lowest, strict=True)), "a name stands below all points of its stem"
    assert not [pair for pair in itertools.combinations(boxes, 2) if names._meet(*pair)]
    assert not [(box, dot) for box, dot in itertools.product(boxes, dots) if names._meet(box, dot)]
    # of one side of the ridge point: names of the other reach below it only where a screen has no room beside
    sides = [
        [index for index, stem in enumerate(plot.stems) if (stem.intensity <= 200) == side] for side in (True, False)
    ]
    crossed = [(a, b) for side in sides for a in side for b in side if a != b and names._meet(boxes[a], lines[b])]
    assert not crossed
