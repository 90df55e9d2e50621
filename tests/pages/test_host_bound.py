"""Host-bound numbers are ranges over machines, or one host's; a busy machine's are on no chart."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from mkdocs.exceptions import Abort

from docs.publish import units
from docs.publish.errors import PublishError
from docs.publish.evidence import Evidence
from docs.publish.generated import exports, machines
from docs.publish.macros import charts
from docs.publish.macros.calc import calc
from docs.publish.place import Place
from docs.publish.records.measured import Coordinates
from docs.publish.records.store import Store
from tests.pages import tiny
from tests.pages.test_charts import spec_of, titles
from tests.pages.tiny import rendered, store

READ = "docs/pages"  # through docs.publish

PLACE = Place("kernels/add.md", "kernels/add/")
OURS = Coordinates("kernels/add", "ours", mode="calls")
BARS = {"kind": "bars", "case": "kernels/add", "metric": "time", "mode": "calls"}
SMALL = {"bytes_read": 1000, "bytes_written": 1000, "flops": 1000}
STOLEN = "30% of the processor's time went to other machines"


def took(microseconds: float) -> dict[str, Any]:
    return tiny.took(microseconds / 1000)


def calls(root: Path, variant: str, microseconds: float, **changed: Any) -> dict[str, Any]:
    """A row of back-to-back calls."""
    return tiny.row(root, variant=variant, mode="calls", time=took(microseconds), **SMALL, **changed)


def run(root: Path, day: int, ours: float, eager: float, boot: str | None = None, **changed: Any) -> dict[str, Any]:
    """A run on a machine started on its own, unless it is told which."""
    machine = tiny.H100 | {"boot": boot or f"boot{day}", "processor": "A processor, 16 cores"}
    rows = [calls(root, "ours", ours, **changed), calls(root, "eager", eager, **changed)]
    host = {"python_call": 4e-8, "eager_launch": 5e-6}
    return tiny.record(root, rows, day=day, machine=machine, host=host)


def three(root: Path) -> list[dict[str, Any]]:
    times = [(35.4, 70.8), (60.7, 60.7), (45, 80)]
    return [run(root, day, *both) for day, both in enumerate(times, 1)]


def drawn(known: Store, spec: dict[str, Any], page: Evidence | None = None) -> str:
    return charts.render(spec, known, page or Evidence(PLACE))


@pytest.mark.parametrize(
    ("low", "high", "unit", "shown"),
    [
        (35.4e-6, 60.7e-6, "s", "35 to 61 µs"), (530e-6, 1029e-6, "s", "530 to 1,030 µs"), (1.0, 1.0, "x", "1.00×"),
        (1.86, 2.31, "x", "1.86 to 2.31×"), (101e-6, 108.9e-6, "s", "101 to 109 µs"), (35e-6, 35e-6, "s", "35.0 µs"),
        (0.94e-6, 1.7e-6, "s", "940 to 1,700 ns"), (20e-6, 60e-6, "s", "20 to 60 µs"),
        (16.01, 27.71, "x", "16.0 to 27.8×"), (2.04, 5.7, "x", "2.0 to 5.7×"), (3456e-6, 9e-3, "s", "3.4 to 9.0 ms"),
    ],
)  # fmt: skip
def test_a_range_has_one_unit_and_holds_its_ends(low: float, high: float, unit: str, shown: str):
    assert units.between(low, high, unit) == shown


def test_from_three_machines_on_a_host_bound_number_is_a_range(root: Path):
    store(root, *three(root))
    html, page = rendered('{{ wall("ours", "small") }}', root)
    entry = page.evidence.entries["e1"]
    assert entry["value"] == "35 to 61 µs" and "35 to 61 µs</a>" in html
    assert [one["value"] for one in entry["runs"]] == ["35.4 µs", "60.7 µs", "45.0 µs"]
    assert {one["host"] for one in entry["runs"]} == {"A processor, 16 cores"}
    assert "3 machines. Their median is 45.0 µs" in entry["meaning"] and f'title="{entry["meaning"]}"' in html
    html, _ = rendered('{{ gain("ours", over="eager", at="small", clock="wall") }}', root)
    assert "1.00 to 2.00×</a>" in html, "the ratio within each run, not of the ranges"
    found = calc(PLACE, "2 * t", "us", {"t": tiny.macros(root)[0].wall("ours", "small").quantity})
    assert found.text == "90.0 µs" and found.entry["inputs"][0]["value"] == "45.0 µs, of 35 to 61 µs"


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["machine"].update(boot="boot1"),
        lambda record: record["machine"].pop("boot"),
        lambda record: record["rows"][0].update(busy=STOLEN),
        lambda record: record["rows"][0]["sources"].update(hash="of older code"),
        lambda record: record["software"].update(torch="2.12.0"),
    ],
    ids=["same machine", "unknown machine", "busy", "other code", "other software"],
)
def test_what_is_not_measured_again_on_another_machine_does_not_count(change, root: Path):
    records = three(root)
    change(records[1])
    store(root, *records)
    html, page = rendered('{{ wall("ours", "small") }}', root)
    assert ">45.0 µs</a>" in html, "of the newest run"
    assert page.evidence.entries["e1"]["meaning"].endswith("one host's time: A processor, 16 cores. Yours will differ.")


def test_where_the_gpu_sets_the_pace_a_time_is_a_time(root: Path):
    content = run(root, 1, 500, 800)
    gpu = [tiny.row(root, variant=name, time=took(us), **SMALL) for name, us in (("ours", 480), ("eager", 790))]
    shown = '{{ wall("ours", "small") }}'
    store(root, content | {"rows": content["rows"] + gpu})
    html, _ = rendered(shown, root)
    assert ">500 µs<" in html and "is one host" not in html
    store(root, run(root, 2, 490, 790))
    assert ">490 µs<" in rendered(shown, root)[0], "another machine says what the GPU needs"
    store(root, content | {"rows": content["rows"] + [gpu[0], gpu[1] | {"time": took(100)}]})
    assert "is one host" in rendered(shown, root)[0], "one of the variants waits for the host"


def test_a_cpu_has_plain_times(root: Path):
    tiny.write(root, run(root, 1, 500, 31) | {"machine": tiny.LAPTOP | {"boot": "b"}}, "local")
    store(root, run(root, 2, 500, 31))
    assert ">500 µs<" in rendered('{{ wall("ours", "small", machine="laptop") }}', root)[0]


def test_charts_draw_the_median_with_the_range(root: Path):
    known = store(root, *three(root))
    html = drawn(known, BARS | {"title": "Ours takes {ours}, {eager/ours} of eager"})
    bars = {mark["variant"]: mark for mark in spec_of(html, "wide")["data"]["values"]}
    ends = [bars["ours"][end] for end in ("low", "value", "high")]
    assert ends == pytest.approx([35.4, 45, 60.7])
    assert (bars["ours"]["text"], bars["eager"]["text"]) == ("35 to 61 µs", "60 to 80 µs")
    assert titles(html) == ["Ours takes 35 to 61 µs, 1.00 to 2.00× of eager"]
    assert "from the lowest to the highest of 3 machines" in html and "lowest to highest machine" in html


def test_exports_have_the_new_fields(root: Path):
    known = store(root, *three(root))
    rows = json.loads(exports.as_json(known, "nvidia-h100-80gb-hbm3"))["rows"]
    assert (rows[0]["lowest"], rows[0]["highest"]) == (35.4e-6, 60.7e-6)
    head, line = exports.as_csv(known, "nvidia-h100-80gb-hbm3").splitlines()[:2]
    cells = dict(zip(head.split(","), re.split(r',(?=(?:[^"]*"[^"]*")*[^"]*$)', line), strict=True))
    asked = ("eager_launch", "boot", "machines", "lowest", "highest", "busy", "processor")
    assert [cells[name] for name in asked] == [
        "5e-06", "boot3", "3", "3.54e-05", "6.07e-05", "", '"A processor, 16 cores"',
    ]  # fmt: skip


# ---- a busy machine -------------------------------------------------------------------------------------------------


def busy(root: Path, day: int = 9) -> dict[str, Any]:
    return tiny.record(root, [tiny.row(root, busy=STOLEN, time=took(4000)), tiny.row(root, variant="eager")], day=day)


def test_a_busy_run_stands_back_for_an_older_one_and_stays_on_the_machines_page(root: Path):
    known = store(root, tiny.record(root), busy(root))
    assert known.find(Coordinates("kernels/add", "ours")).time.p50 == 1e-3
    assert known.find(Coordinates("kernels/add", "eager")).record.date.startswith("2026-01-01"), "side by side"
    page = machines.page(known, "nvidia-h100-80gb-hbm3", Place("results/machines/a.md", "results/machines/a/"))
    section = page.partition("## Measured while the machine was busy")[2]
    assert "kernels/add forward, bfloat16, device" in section
    assert "30% of the processor&#x27;s time went to other machines" in section
    at = Place("results/rows/a/kernels-add.html", "results/rows/a/")
    assert "4.00 ms" not in machines.case_rows(known, "nvidia-h100-80gb-hbm3", "kernels/add", at)


def test_a_number_that_only_a_busy_machine_has_is_marked_and_no_chart_draws_it(root: Path):
    known = store(root, busy(root))
    html, page = rendered('{{ gpu("ours", "small") }}', root)
    assert "4.00 ms <small>busy</small></a>" in html and page.evidence.stale, "a release is told"
    assert page.evidence.entries["e1"]["busy"] == f"This machine was busy ({STOLEN}); measure again."
    assert "† Measured on a busy machine." in page.finish(html)
    assert calc(PLACE, "2 * t", "us", {"t": tiny.macros(root)[0].gpu("ours", "small").quantity}).busy
    html, page = rendered('{{ holds("ours slower than eager", at="small") }}', root)
    assert page.evidence.stale and html == ' <small class="rp-badge">busy</small>'
    (root / tiny.KERNEL).write_text("def add(a, b):\n    return b + a\n")
    html, page = rendered('{{ gpu("ours", "small") }}{{ holds("ours slower than eager", at="small") }}', root)
    assert re.findall(r"<small[^>]*>([^<]*)<", html) == ["stale, busy", "stale", "busy"]
    assert "† Measured before the code changed or on a busy machine." in page.finish(html)
    (root / tiny.KERNEL).write_text(tiny.FILES[tiny.KERNEL])
    page = Evidence(PLACE)
    html = drawn(known, BARS | {"mode": "device"}, page)
    bars = [mark["variant"] for mark in spec_of(html, "wide")["data"]["values"]]
    assert bars == ["eager"] and "Not drawn: ours at 8 × 4. This machine was busy" in html and page.stale
    alone = store(root, tiny.record(root, [tiny.row(root, busy=STOLEN)], day=9))
    html = drawn(alone, BARS | {"mode": "device", "title": "{ours}"})
    assert "<svg" not in html and "Not drawn" in html


def test_a_release_refuses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setenv("RIDGEPOINT_RELEASE", "1")
    root = tiny.project(tmp_path, '---\ncase: kernels/add\n---\n\n# Add\n\n{{ gpu("ours", "small") }}\n')
    tiny.write(root, tiny.record(root))
    tiny.build(root)
    (root / "docs/measurements/runs" / f"{tiny.record(root)['id']}.json").unlink()
    tiny.write(root, busy(root))
    with pytest.raises(Abort):
        tiny.build(root)
    assert "index.md: Time: kernels/add ours" in caplog.text
    assert "results/machines/nvidia-h100-80gb-hbm3.md: kernels/add" in caplog.text


# ---- which run counts -----------------------------------------------------------------------------------------------


def test_a_campaign_may_be_run_in_parts(root: Path):
    wide, failed = {"rows": 8, "columns": 8}, {"case": "kernels/add", "direction": "forward", "dtype": "bfloat16"}
    failure = failed | {"shape": {"rows": 8, "columns": 4}, "variant": "liger", "reason": "no"}
    first = tiny.record(root, [tiny.row(root), tiny.row(root, shape=wide)], day=1, failures=[failure])
    second = tiny.record(root, [tiny.row(root, shape=wide, kernels=7)], day=2)
    known = store(root, first, second)
    found = {row.size: row.row.kernels for row in known.select()}
    assert found == {"8x4": 1, "8x8": 7}
    assert [failure.variant for failure in known.failures("nvidia-h100-80gb-hbm3")] == ["liger"]
    assert known.newest_record(Coordinates("kernels/add")).date.startswith("2026-01-02")
    third = tiny.record(root, [tiny.row(root, shape=wide)], day=3)
    of_a_shape = store(root, third).newest_record(Coordinates("kernels/add", shape="8x4"))
    assert of_a_shape.date.startswith("2026-01-01"), "a part measured later has ceilings of its own"
    fourth = tiny.record(root, [tiny.row(root, kernels=8)], day=4)
    known = store(root, fourth)
    assert {row.size: row.row.kernels for row in known.select()} == {"8x4": 8, "8x8": 1}
    assert not known.failures("nvidia-h100-80gb-hbm3"), "the newest run there had none"


def test_what_older_code_measured_is_history(root: Path):
    wide = tiny.row(root, shape={"rows": 8, "columns": 8})
    wide["sources"] = wide["sources"] | {"hash": "of older code"}
    known = store(root, tiny.record(root, [wide], day=1), tiny.record(root, day=2))
    assert {row.size for row in known.select()} == {"8x4"}
    assert {row.size for row in known.select(history=True)} == {"8x4", "8x8"}


def test_a_page_may_be_about_another_machine_than_the_main_one(tmp_path: Path):
    root = tiny.project(
        tmp_path, '---\ncase: kernels/add\nmeasured_on: other\n---\n\n# Add\n\n{{ gpu("ours", "small") }}\n'
    )
    other = tiny.H100 | {"slug": "other", "name": "Tesla Z"}
    tiny.write(root, tiny.record(root))
    tiny.write(root, tiny.record(root, [tiny.row(root, time=took(4000))], day=2, machine=other))
    html = tiny.build(root)["index.html"]
    assert "4.00 ms</a>" in html and "This page is about the Tesla Z." in html


def test_a_run_without_a_floor_says_so(root: Path):
    store(root, tiny.record(root, floor=None))
    with pytest.raises(PublishError, match="machine: floor: expected a newest run that measured it, got 2026-01-01"):
        rendered('{{ machine("floor") }}', root)
