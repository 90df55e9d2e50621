"""Records are read whole, refused with one clear line, never changed, and merged by the rules of the design."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from docs.publish.errors import PublishError
from docs.publish.records import schema
from docs.publish.records.admit import admit, main
from docs.publish.records.datasheets import QUANTISES
from docs.publish.records.measured import Coordinates, matrix_ceiling
from docs.publish.records.store import Store
from snippets.validation.timing import Timing
from tests.benchmarks.functions import Code
from tests.benchmarks.reviewed import VERSION
from tests.benchmarks.source import ROOT
from tests.pages import tiny

READ = "docs/pages", "snippets/**/*.py", "tests/benchmarks"  # through docs.publish

Change = Callable[[dict], object]
FILES = [tiny.KERNEL, tiny.CASE]
OURS = Coordinates("kernels/add", "ours")


def faster(content: dict, row: int, **changed: object) -> None:
    content["rows"][row] |= changed


def quantising(content: dict, **changed: object) -> None:
    """The first row becomes one of a kernel that multiplies its bf16 inputs in fp8."""
    sources = content["rows"][0]["sources"]
    faster(content, 0, sources=sources | {"files": [QUANTISES, *sources["files"]]}, **changed)


BUSY = "an eager launch took 1.6 times as long"
H200 = tiny.H100 | {"name": "NVIDIA H200"}  # of which a datasheet tells
FAULTS: dict[str, tuple[Change, str]] = {
    "schema": (lambda record: record.update(schema=2), "expected schema version 1, got 2"),
    "no schema": (lambda record: record.pop("schema"), "expected schema version 1, got None"),
    "dirty": (lambda record: record.update(dirty=True), "expected a run of a commit, got one with uncommitted changes"),
    "no commit": (lambda record: record.update(commit=None), "expected a run of a commit, got none"),
    "unknown field": (lambda record: record.update(mood="good"), "mood: Extra inputs are not permitted"),
    "text for a number": (
        lambda record: faster(record, 0, kernels="3"),
        "rows.0.kernels: Input should be a valid integer, got '3'",
    ),
    "missing": (lambda record: record["rows"][1].pop("time"), "rows.1.time: Field required"),
    "no ceilings": (
        lambda record: record["ceilings"].update(bandwidth={}),
        "ours forward 8×4 bfloat16 device: expected a measured bandwidth ceiling for the mix 'copy', got none",
    ),
    "percentiles": (lambda record: faster(record, 0, time=tiny.TIMING | {"p20": 1.0}), "p20 <= p50 <= p80 expected"),
    "median above the 80th percentile": (
        lambda record: faster(record, 0, time=tiny.TIMING | {"p50": 1.0}),
        "p20 <= p50 <= p80 expected",
    ),
    "bandwidth above the datasheet": (
        lambda record: faster(record, 0, bytes_read=4 * 10**9),
        "ours forward 8×4 bfloat16 device: expected at most 4.8 TB/s (NVIDIA H200 SXM datasheet), got 4.94 TB/s",
    ),
    "rate above the datasheet": (
        lambda record: faster(record, 1, flops=2 * 10**12),
        "eager forward 8×4 bfloat16 device: expected at most 989.5 TFLOP/s (NVIDIA H200 SXM datasheet), got 1,000",
    ),
    "rate of a kernel that quantises above the datasheet": (
        lambda record: quantising(record, flops=2 * 10**12),
        "ours forward 8×4 bfloat16 device: expected at most 1979 TFLOP/s (NVIDIA H200 SXM datasheet), got 2,000",
    ),
    "ceiling above the datasheet": (
        lambda record: record["ceilings"]["bandwidth"].update(copy=tiny.CEILING | {"rate": 5e12}),
        "copy ceiling: expected at most 4.8 TB/s (NVIDIA H200 SXM datasheet), got 5.00 TB/s",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_record_is_refused_in_one_line_and_left_alone(fault: str, root: Path):
    change, expected = FAULTS[fault]
    content = json.loads(json.dumps(tiny.record(root, machine=H200)))
    change(content)
    path = tiny.write(root, content)
    before = path.read_bytes()
    with pytest.raises(PublishError) as refusal:
        tiny.store(root)
    message = str(refusal.value)
    assert message.startswith(f"docs/measurements/runs/{path.name}: ")
    assert expected in message
    assert "\n" not in message
    assert path.read_bytes() == before


def test_a_kernel_that_quantises_may_pass_the_peak_of_its_inputs(root: Path):
    content = json.loads(json.dumps(tiny.record(root, machine=H200)))
    quantising(content, flops=12 * 10**11)  # 1,200 TFLOP/s: more than bf16's 989.5
    tiny.write(root, content)
    assert tiny.store(root).find(OURS).metric("rate") == pytest.approx(1.2e15)


def test_what_was_written_last_may_still_be_in_the_cache_when_a_call_ends(root: Path):
    content = json.loads(json.dumps(tiny.record(root, machine=H200)))
    faster(content, 0, bytes_read=3_850_000_000)  # 4.85 TB/s with what it writes, 4.79 without 60 MB of that
    tiny.write(root, content)
    assert tiny.store(root).find(OURS)


@pytest.mark.parametrize(
    ("mode", "moved", "refused"), [("graph", 0.9, False), ("graph", 1.1, True), ("device", 0.9, True)]
)
def test_what_fits_in_the_cache_may_come_from_there_faster_than_from_memory(
    mode: str, moved: float, refused: bool, root: Path
):
    content = json.loads(json.dumps(tiny.record(root, machine=H200)))
    content["machine"]["l2_bytes"] = cache = 6 * 10**9  # more than memory delivers in the row's millisecond
    faster(content, 0, mode=mode, bytes_read=int(moved * cache), bytes_written=0)
    tiny.write(root, content)
    if refused:
        with pytest.raises(PublishError, match="datasheet"):
            tiny.store(root)
        return
    assert tiny.store(root).find(replace(OURS, mode=mode)).metric("share") is None, (
        "no share of a memory that it did not read"
    )


@pytest.mark.parametrize("keep", [0, 1, 400, -2])
def test_a_truncated_record_is_refused(keep: int, root: Path):
    path = tiny.write(root, tiny.record(root))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(PublishError, match=rf"runs/{path.name}: expected a whole JSON file"):
        tiny.store(root)


def test_a_sound_record_is_read(root: Path):
    row = tiny.store(root, tiny.record(root)).find(OURS)
    assert row.metric("bandwidth") == pytest.approx(2e12)
    assert row.metric("share") == pytest.approx(0.5)
    assert row.metric("rate_share") == pytest.approx(1e12 / 8e14)
    assert row.metric("speedup", over="eager") == pytest.approx(2)
    assert row.spread("time") == pytest.approx((0.9e-3, 1.2e-3))
    assert row.spread("bandwidth") == pytest.approx((2e12 / 1.2, 2e12 / 0.9))
    assert row.metric("registers") is None
    assert not row.stale


def test_a_row_says_what_its_host_was_like_where_the_record_knows(root: Path):
    yardstick = {"python_call": 4e-8, "eager_launch": 5e-6, "cuda_launch": 2e-6}
    new = tiny.row(root, busy="stolen", host=yardstick, calls=10, refreshed=True, built_cold=False)
    there = tiny.H100 | {"boot": "b007", "processor": "A processor, 16 cores"}
    newer, older = tiny.store(root, tiny.record(root, [new, tiny.row(root, variant="eager")], machine=there)).select()
    assert (newer.row.busy, newer.row.host, newer.row.calls) == ("stolen", yardstick, 10)
    assert (older.row.busy, older.row.host, older.row.refreshed) == ("", None, False)
    assert newer.metric("build") is None and older.metric("build") == 2.5, "seconds of a warm build say nothing"
    assert newer.record.machine["boot"] == "b007"


def test_local_runs_may_be_of_uncommitted_code(root: Path):
    tiny.write(root, tiny.record(root, dirty=True, machine=tiny.LAPTOP), "local")
    assert tiny.store(root).machines == {"laptop": "A laptop (this machine)"}


def test_what_this_machine_measured_never_replaces_a_published_number(root: Path):
    fast = tiny.TIMING | {"p20": 0.5e-3, "p50": 0.5e-3}
    tiny.write(root, tiny.record(root))
    tiny.write(root, tiny.record(root, [tiny.row(root, time=fast)], day=9), "local")
    store = tiny.store(root)
    assert list(store.machines) == ["nvidia-h100-80gb-hbm3", "nvidia-h100-80gb-hbm3-here"]
    assert store.find(OURS).time.p50 == 1e-3
    assert store.find(replace(OURS, machine="nvidia-h100-80gb-hbm3-here")).time.p50 == 0.5e-3


def test_the_newest_run_of_a_case_wins_and_older_ones_are_history(root: Path):
    other = root / "tests/benchmarks/kernels/other.py"
    other.write_text("CASE = 'kernels/other'\n")
    elsewhere = tiny.row(
        root, case="kernels/other", sources={"hash": "x", "files": [other.relative_to(root).as_posix()]}
    )
    tiny.write(root, tiny.record(root, [tiny.row(root), elsewhere], day=1), name="z")
    tiny.write(root, tiny.record(root, [tiny.row(root, kernels=7)], day=2))
    store = tiny.store(root)
    assert store.find(OURS).row.kernels == 7
    assert [row.row.kernels for row in store.select(Coordinates("kernels/add"), history=True)] == [1, 7]
    assert store.find(Coordinates("kernels/other", "ours")).record.date.startswith("2026-01-01"), (
        "records of a machine merge"
    )


def test_a_speedup_compares_what_ran_side_by_side(root: Path):
    tiny.write(root, tiny.record(root, [tiny.row(root, variant="eager")], day=1))
    row = tiny.store(root, tiny.record(root, [tiny.row(root)], day=2)).find(OURS)
    with pytest.raises(PublishError, match=r"over, beside kernels/add ours .* expected one of ours; got 'eager'"):
        row.metric("speedup", over="eager")


def test_sustained_load_is_held_against_the_ceiling_of_sustained_load(root: Path):
    tiny.write(root, tiny.record(root, [tiny.row(root, mode=mode) for mode in ("burst", "sustained")]))
    ceilings = [matrix_ceiling(row.row) for row in tiny.store(root).select(OURS)]
    assert ceilings == [8e14, 6e14]


def test_a_removed_case_is_history(root: Path):
    tiny.write(root, tiny.record(root))
    (root / tiny.CASE).unlink()
    store = tiny.store(root)
    assert store.select() == []
    assert len(store.select(history=True)) == 2


# ---- admit ----------------------------------------------------------------------------------------------------------


def committed(root: Path) -> str:
    """Commit the project, with the method; returns the commit."""
    for file in {name.partition(":")[0] for name in Code.of().method().functions}:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        if not (root / file).exists():
            (root / file).write_text((ROOT / file).read_text())
    git = ["git", "-C", str(root), "-c", "user.name=Test", "-c", "user.email=test@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "A case"]):
        subprocess.run([*git, *command], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def test_a_local_run_of_a_commit_is_admitted_as_it_is(root: Path):
    path = tiny.write(root, tiny.record(root, commit=committed(root)), "local", name="mine")
    target = admit(path, root / "docs/measurements/runs", root)
    assert target.name == "2026-01-01T00-00-00Z-nvidia-h100-80gb-hbm3.json"
    assert target.read_bytes() == path.read_bytes()
    with pytest.raises(PublishError, match="expected a new record"):
        admit(path, root / "docs/measurements/runs", root)


def test_a_run_is_held_against_its_commit_by_the_hash_that_the_commit_makes(root: Path):
    """The canonical form may change between a run and its admission."""
    form = root / "tests/benchmarks/functions.py"
    form.parent.mkdir(parents=True, exist_ok=True)
    found = 'Search(self, [(case_file, "CASE"), *sweep]).found()'
    text = (ROOT / form.relative_to(root)).read_text()
    assert found in text
    form.write_text(text.replace(found, f"Reached({found}.hash[::-1], {{}})"))
    content = tiny.record(root, [tiny.row(root)], commit=committed(root))
    with pytest.raises(PublishError, match="expected the code of commit"):
        admit(tiny.write(root, content, "local"), root / "docs/measurements/runs", root)
    sources = tiny.sources(root)
    content["rows"][0]["sources"] = sources | {"hash": sources["hash"][::-1]}
    assert admit(tiny.write(root, content, "local"), root / "docs/measurements/runs", root).is_file()


def test_runs_that_began_in_one_second_stay_two(root: Path):
    commit = committed(root)
    for variant in ("ours", "eager"):
        content = tiny.record(root, [tiny.row(root, variant=variant)], commit=commit)
        target = admit(tiny.write(root, content, "local"), root / "docs/measurements/runs", root)
    assert target.name == "2026-01-01T00-00-00Z-nvidia-h100-80gb-hbm3-2.json"
    known = {
        row.record.id: row.variant
        for row in Store.load(root / "docs/measurements", root, local=False).select(history=True)
    }
    assert known == {
        "2026-01-01T00-00-00Z-nvidia-h100-80gb-hbm3": "ours",
        "2026-01-01T00-00-00Z-nvidia-h100-80gb-hbm3-2": "eager",
    }


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda record: record.update(commit="d" * 40), "expected a commit that this checkout knows"),
        (lambda record: record.update(dirty=True), "got one with uncommitted changes"),
        (lambda record: record.update(rows=[]), "expected rows, got none"),
        (lambda record: record["rows"][0]["sources"].update(hash="0" * 16), "expected the code of commit"),
        (lambda record: record["rows"][0]["sources"].update(method=VERSION + 1), "expected the code of commit"),
        (
            lambda record: record["rows"][0]["sources"]["files"].insert(0, "kernels/gone.py"),
            "expected kernels/gone.py in commit",
        ),
        (lambda record: record["rows"][0].update(bytes_read=10**11), "NVIDIA H200 SXM datasheet"),
        (lambda record: record["rows"][0].update(busy=BUSY), rf"got 1 of 1 of a busy one \({BUSY}\): .* --busy$"),
    ],
)
def test_what_may_not_be_published_is_not_admitted(change: Change, expected: str, root: Path):
    content = json.loads(json.dumps(tiny.record(root, [tiny.row(root)], commit=committed(root), machine=H200)))
    change(content)
    path = tiny.write(root, content, "local")
    before = path.read_bytes()
    with pytest.raises(PublishError, match=expected):
        admit(path, root / "docs/measurements/runs", root)
    assert path.read_bytes() == before
    assert not (root / "docs/measurements/runs").exists()


def test_rows_of_a_busy_machine_are_admitted_where_they_are_wanted(root: Path, capsys: pytest.CaptureFixture[str]):
    rows = [tiny.row(root), tiny.row(root, variant="eager", busy=BUSY)]
    path = tiny.write(root, tiny.record(root, rows, commit=committed(root)), "local")
    assert admit(path, root / "docs/measurements/runs", root, busy=True).read_bytes() == path.read_bytes()
    for options, refusal in ([], "or add --busy\n"), (["--busy"], "fetch it, or push it first\n"):  # only `root` has it
        assert main([str(path), *options]) == 1
        assert capsys.readouterr().err.endswith(refusal)
    (known,) = Store.load(root / "docs/measurements", root, local=False).busy("nvidia-h100-80gb-hbm3")
    assert known.variant == "eager"


def test_a_run_by_a_method_that_nobody_reviewed_is_not_admitted(root: Path):
    committed(root)
    method = root / "tests/benchmarks/method.py"
    method.write_text(method.read_text().replace('"device": 30', '"device": 6'))
    path = tiny.write(root, tiny.record(root, commit=committed(root)), "local")
    with pytest.raises(PublishError, match="expected a commit with a reviewed method"):
        admit(path, root / "docs/measurements/runs", root)


def test_the_command_says_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(tmp_path / "no.json")]) == 1
    assert capsys.readouterr().err == f"{tmp_path}/no.json: expected a record, found no such file\n"


def test_the_timers_own_summary_is_what_records_hold():
    """Ceilings and sweeps write it as it is."""
    for timing in (Timing.of([1e-3, 2e-3, 3e-3], calls=12), Timing.of([1e-3])):
        assert schema.Timing.model_validate(asdict(timing)).p50 == timing.p50


def test_while_a_campaign_goes_on_points_not_reached_yet_are_shown_as_they_were(root: Path):
    """And what the case times no longer is history: a point, or one of its modes."""
    sizes = [{"rows": rows, "columns": 4} for rows in (8, 16, 32)]
    earlier = [tiny.row(root, shape=shape, sources={"hash": "0" * 16, "files": FILES}) for shape in sizes]
    earlier.append(tiny.row(root, shape=sizes[1], mode="graph", sources={"hash": "0" * 16, "files": FILES}))
    tiny.write(root, tiny.record(root, earlier, day=1))
    grid = {"kernels/add": ["forward 8x4 bfloat16 device", "forward 16x4 bfloat16 device"]}
    tiny.write(root, tiny.record(root, [tiny.row(root, shape=sizes[0])], day=2, grid=grid))
    rows = {(row.size, row.mode): row.stale for row in tiny.store(root).select()}
    assert rows == {("8x4", "device"): "", ("16x4", "device"): "code"}
