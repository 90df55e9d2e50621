"""The runner, on cases of a few numbers: what gets a time, what is recorded of the rest, and when a record is whole."""

import fcntl
import gc
import itertools
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import tests.benchmarks
from snippets.validation import timing
from tests.benchmarks import __main__ as command_line
from tests.benchmarks import machine, method, runner
from tests.benchmarks.functions import METHOD, Code
from tests.benchmarks.reached import reached
from tests.benchmarks.reviewed import VERSION
from tests.benchmarks.source import ROOT
from tests.benchmarks.sweeps import __main__ as sweeps_command_line

MINUTES = 600  # in seconds: only what hangs takes as long, however busy the machine
FIRST = """
    import torch
    from tests.benchmarks.case import Case, Point, Timing, Variant, Workload

    x = torch.arange(8.0)
    calls = []


    def tires():
        calls.append(x)
        return 2 * x if len(calls) < 4 else x  # what is captured in the second call is first replayed in the third


    def peer():
        if x is not None:
            raise ImportError("no such   peer\\n installed")
        from snippets.doubled import doubled  # never runs, and counts as reached
        return doubled


    def grows():
        x.add_(1)  # a kernel that works in place: right once
        return x - 1


    def prepare(point, device):
        x.copy_(torch.arange(8.0))
        wrong = lambda: 2.5 * x
        return Workload(
            variants={
                "wrong": Variant(lambda: wrong),
                "ours": Variant(lambda: lambda: x + x),
                "peer": Variant(peer),
                "two": Variant(lambda: lambda: (x + x, x), results=lambda pair: {"output": pair[0], "more": pair[1]}),
                "eager": Variant(lambda: lambda: 2 * x),
            },
            baseline="eager",
            reference=lambda: {"output": 2 * x.double()},
            bytes_read=32,
            bytes_written=32,
            flops=8,
        )


    CASE = Case(
        question="Is two x the same as x and x?",
        points=lambda device: [Point({"elements": 8}, "float32", modes=("calls",))],
        prepare=prepare,
    )
"""
TWO = ('modes=("calls",))]', 'modes=("calls",)), Point({"elements": 8}, "float32", "backward", modes=("calls",))]')
SECOND = """
    import dataclasses
    import time
    from tests.benchmarks import first

    def wait():
        print("waiting", flush=True)
        time.sleep({seconds})
        raise KeyboardInterrupt

    def prepare(point, device):
        workload = first.prepare(point, device)
        ours = dataclasses.replace(workload.variants["ours"], build=wait)
        return dataclasses.replace(workload, variants=dict(workload.variants) | {{"ours": ours}})

    CASE = dataclasses.replace(first.CASE, prepare=prepare)
"""


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A miniature of the project whose cases are `first` and whatever a test adds, measured in few rounds."""
    root = tmp_path / "house"
    write(root / "tests/benchmarks/first.py", FIRST)
    write(root / "snippets/doubled.py", "def doubled(x):\n    return x + x\n")
    for file in reached(ROOT, [ROOT / name for name, _ in METHOD]):
        if file.suffix == ".py":
            write(root / file.relative_to(ROOT), file.read_text())
    monkeypatch.setattr(runner, "ROOT", root)
    monkeypatch.setattr(method, "ceilings", lambda device: {})
    monkeypatch.setitem(method.ROUNDS, "calls", 5)
    monkeypatch.setattr(timing.seconds_per_call, "__defaults__", (1e-4, 0.0))  # in seconds, of one sample
    monkeypatch.setattr(machine, "_counters", dict)  # other tests run beside this one
    for pause in ("GRACE", "BRIEFLY"):  # nobody else times these cases: the locks are in a folder of their own
        monkeypatch.setattr(machine, pause, 0.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = SimpleNamespace(collect=gc.collect, freeze=gc.freeze, unfreeze=lambda: None)
    monkeypatch.setattr(runner, "gc", kept)  # what was here before, torch and pytest, stays out of its collections
    monkeypatch.setattr(
        tests.benchmarks, "__path__", [*tests.benchmarks.__path__, str((root / "tests/benchmarks/first.py").parent)]
    )
    yield root
    for name in ("first", "second"):
        sys.modules.pop(f"tests.benchmarks.{name}", None)
        vars(tests.benchmarks).pop(name, None)  # where `from tests.benchmarks import first` looks before it imports


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")


def bench(house: Path, *arguments: str) -> int:
    return command_line.main(["--device", "cpu", "--out", str(house / "out"), *arguments])


def records(house: Path) -> list[dict]:
    """Every record that was written; nothing else may lie beside them."""
    files = sorted((house / "out").glob("*"))
    assert all(path.suffix == ".json" for path in files), files
    return [json.loads(path.read_text()) for path in files]


def measured(house: Path) -> tuple[dict, dict]:
    """Rows and reasons of failure of the first case's one record, by variant."""
    assert bench(house, "first") == 0
    (record,) = records(house)
    rows = {row["variant"]: row for row in record["rows"]}
    assert len(rows) == len(record["rows"])
    return rows, {failure["variant"]: failure["reason"] for failure in record["failures"]}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


# ---- what gets a time -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", ["", "; raise torch.OutOfMemoryError"])
def test_a_point_leaves_no_precision_to_the_next(house: Path, after: str) -> None:
    """In a process where TF32 had been left on, fp32 results were off by 1e-3, the baseline's too."""
    change = 'torch.set_float32_matmul_precision("high")'
    edit(
        house / "tests/benchmarks/first.py",
        "def prepare(point, device):\n",
        f"def prepare(point, device):\n    {change}{after}\n",
    )
    bench(house, "first")
    assert torch.get_float32_matmul_precision() == "highest"


def test_right_variants_are_timed_and_described(house: Path) -> None:
    rows, _ = measured(house)
    assert set(rows) == {"eager", "ours"}
    row = rows["ours"]
    assert 0 < row["time"]["p20"] <= row["time"]["p50"] <= row["time"]["p80"] and row["time"]["samples"] >= 5
    assert (row["case"], row["mode"], row["direction"], row["dtype"]) == ("first", "calls", "forward", "float32")
    assert row["shape"] == {"elements": 8}
    assert (row["bytes_read"], row["bytes_written"], row["flops"], row["mix"]) == (32, 32, 8, "copy")
    assert row["error"]["value"] == 0.0 and row["error"]["bound"] == pytest.approx(2 * 2**-23 * 14)
    assert row["build_seconds"] > 0
    (record,) = records(house)
    own = ["snippets/doubled.py", "tests/benchmarks/case.py", "tests/benchmarks/first.py"]
    assert row["sources"]["files"] == own
    assert row["sources"]["method"] == VERSION
    reached = Code.of(house).measured("tests/benchmarks/first.py")
    assert row["sources"]["hash"] == reached.hash and record["functions"] == {"first": reached.functions}
    assert "tests/benchmarks/first.py:prepare" in reached.functions
    assert record["grid"] == {"first": ["forward 8 float32 calls"]}, "as docs/publish/records/store.py reads it"
    assert record["seconds"].keys() == {"first forward 8 float32"}


def test_a_wrong_variant_gets_no_time_but_a_reason(house: Path) -> None:
    rows, reasons = measured(house)
    assert "wrong" not in rows
    said = "wrong result, not timed: output: largest error 3.5e+00, expected at most 3.3e-06 and RMS error"
    assert reasons["wrong"].startswith(said)
    assert reasons["two"].startswith("wrong result, not timed: expected the results ['output']")


def test_a_variant_that_raises_is_recorded_with_what_it_said(house: Path) -> None:
    _, reasons = measured(house)
    assert reasons["peer"] == "ImportError: no such peer installed"


def test_a_variant_that_changes_its_inputs_is_found_out(house: Path) -> None:
    edit(house / "tests/benchmarks/first.py", "lambda: lambda: x + x)", "lambda: lambda: 2 * grows())")
    _, reasons = measured(house)
    assert "wrong result" in reasons["ours"]


IN_PLACE = """
    def spoil():
        y.mul_(2)  # in place: right only on inputs that were put back
        return y


    y = x.clone()
    spoilt = Variant(lambda: spoil, refresh=lambda: y.copy_(x))
"""


def test_what_a_variant_overwrites_is_put_back(house: Path) -> None:
    case = house / "tests/benchmarks/first.py"
    edit(case, "def prepare", textwrap.dedent(IN_PLACE).strip() + "\n\n\ndef prepare")
    edit(case, '"ours": Variant(lambda: lambda: x + x)', '"ours": spoilt')
    rows, _ = measured(house)
    assert set(rows) == {"eager", "ours"}
    assert (rows["ours"]["refreshed"], rows["eager"]["refreshed"]) == (True, False)


def test_a_check_that_lets_pass_what_is_wrong_stops_the_point(house: Path) -> None:
    case = house / "tests/benchmarks/first.py"
    wrong = '{"5% too large": lambda right: {"output": 1.05 * right["output"]}, "the same": lambda right: right}'
    edit(case, "flops=8,", f"flops=8, wrong={wrong},")
    rows, reasons = measured(house)
    assert rows == {}
    assert reasons == {"*": "nothing timed: the check lets pass what is wrong: the same"}


def test_wrong_results_that_are_refused_stop_nothing(house: Path) -> None:
    case = house / "tests/benchmarks/first.py"
    edit(case, "flops=8,", 'flops=8, wrong={"5% too large": lambda right: {"output": 1.05 * right["output"]}},')
    rows, _ = measured(house)
    assert set(rows) == {"eager", "ours"}


def test_a_run_says_how_fast_its_host_is(house: Path) -> None:
    host = runner.limits(torch.device("cpu"))["host"]
    assert host.keys() == {"python_call", "eager_launch"} and all(seconds > 0 for seconds in host.values())


def test_a_busy_machine_is_noted(house: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    counters = iter(({"total": 0.0, "used": 0.0, "own": 0.0, "stolen": 0.0}, {"total": 1e6, "stolen": 3e5}))
    monkeypatch.setattr(machine, "_counters", lambda: next(counters))
    rows, _ = measured(house)
    assert rows["ours"]["busy"] == "30% of the processor's time went to other machines"
    assert "this machine was busy (30% of the processor's time" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("after", "busy"),
    [
        ({"total": 8e6, "used": 4e6, "own": 4e6, "stolen": 0.0, "throttled": 0.0}, ""),
        ({"total": 8e6, "used": 4e6, "own": 2e6}, "25% of the processor's time went to other programs"),
        ({"throttled": 1e6}, "of the time this program was held back"),
        ({}, ""),
    ],
)
def test_what_counts_as_busy(after: dict, busy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = iter((dict.fromkeys(after, 0.0), after))
    monkeypatch.setattr(machine, "_counters", lambda: next(counters))
    assert machine.Watch().busy().endswith(busy) and bool(busy) == bool(after and busy)


def test_results_are_kept_where_later_calls_write_to_the_same_memory(house: Path) -> None:
    case = house / "tests/benchmarks/first.py"
    edit(case, "calls = []", "calls = []\nshared = torch.empty(8)")
    edit(case, "Variant(lambda: lambda: 2 * x)", "Variant(lambda: lambda: torch.mul(x, 2, out=shared))")
    edit(case, "wrong = lambda: 2.5 * x", "wrong = lambda: torch.mul(x, 2.5, out=shared)")
    rows, _ = measured(house)
    assert set(rows) == {"eager", "ours"}


def test_a_variant_that_is_wrong_from_the_fourth_call_on_is_found_out(house: Path) -> None:
    edit(house / "tests/benchmarks/first.py", "lambda: lambda: x + x)", "lambda: tires)")
    _, reasons = measured(house)
    assert "wrong result" in reasons["ours"]


def test_without_a_baseline_nothing_is_timed(house: Path) -> None:
    """Otherwise the next variant would be held against itself, and pass."""
    edit(house / "tests/benchmarks/first.py", '"eager": Variant(lambda: lambda: 2 * x)', '"eager": Variant(peer)')
    rows, reasons = measured(house)
    assert rows == {}
    assert reasons["ours"] == "not timed: nothing to hold it against, since eager failed"
    assert reasons["eager"] == "ImportError: no such peer installed"


def test_a_baseline_that_is_wrong_itself_is_no_baseline(house: Path) -> None:
    edit(
        house / "tests/benchmarks/first.py",
        '"eager": Variant(lambda: lambda: 2 * x)',
        '"eager": Variant(lambda: wrong)',
    )
    rows, reasons = measured(house)
    assert rows == {}
    assert "no yardstick" in reasons["eager"]


def test_a_variant_with_a_timer_of_its_own(house: Path) -> None:
    edit(
        house / "tests/benchmarks/first.py",
        "Variant(lambda: lambda: x + x)",
        "Variant(lambda: lambda: x + x, timer=lambda call, device: Timing.of([7.0]))",
    )
    rows, _ = measured(house)
    assert rows["ours"]["time"] == {"p20": 7.0, "p50": 7.0, "p80": 7.0, "samples": 1}
    assert rows["eager"]["time"]["samples"] == 5


def test_inputs_that_do_not_fit_are_recorded(house: Path) -> None:
    edit(house / "tests/benchmarks/first.py", "x.copy_(torch.arange(8.0))", "raise torch.OutOfMemoryError('2 TB')")
    rows, reasons = measured(house)
    assert (rows, reasons) == ({}, {"*": "OutOfMemoryError: 2 TB"})


def test_beside_others_what_does_not_fit_stops_the_point(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out_of_memory = 'Variant(lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("2 TB")))'
    edit(house / "tests/benchmarks/first.py", "Variant(lambda: lambda: x + x)", out_of_memory)
    monkeypatch.setattr(machine.beside, "crowded", True)
    assert measured(house) == ({}, {"*": "OutOfMemoryError: 2 TB"})
    shutil.rmtree(house / "out")
    monkeypatch.setattr(machine.beside, "crowded", False)
    rows, reasons = measured(house)
    assert rows.keys() == {"eager"} and reasons["ours"] == "OutOfMemoryError: 2 TB"


# ---- the record -----------------------------------------------------------------------------------------------------


def test_a_record_says_what_ran_where(house: Path) -> None:
    assert bench(house, "first", "--commit", "c0ffee") == 0
    (record,) = records(house)
    assert record["schema"] == runner.SCHEMA
    assert (record["commit"], record["dirty"]) == ("c0ffee", False)
    assert record["command"] == "python -m tests.benchmarks --device cpu first"
    assert record["machine"]["kind"] == "cpu" and record["machine"]["slug"] in record["id"]
    assert record["software"]["torch"] == torch.__version__


def test_outside_a_checkout_the_tree_counts_as_dirty(house: Path) -> None:
    bench(house, "first")
    assert [(record["commit"], record["dirty"]) for record in records(house)] == [(None, True)]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_uncommitted_changes_are_noted(house: Path) -> None:
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *arguments], cwd=house, check=True)
    commit, dirty = runner.commit_of_tree()
    assert commit and len(commit) == 40 and not dirty
    edit(house / "snippets/doubled.py", "x + x", "2 * x")
    assert runner.commit_of_tree() == (commit, True)


def test_interrupted_in_the_second_case(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(house / "tests/benchmarks/second.py", SECOND.format(seconds=0))
    assert bench(house) == 130
    (record,) = records(house)
    assert {row["case"] for row in record["rows"]} == {"first"}
    assert {failure["case"] for failure in record["failures"]} == {"first"}
    assert "interrupted: what was measured is in" in capsys.readouterr().err


def test_interrupted_in_the_first_case(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(house / "tests/benchmarks/second.py", SECOND.format(seconds=0))
    assert bench(house, "second") == 130
    assert not (house / "out").exists()
    assert "interrupted: nothing was measured yet" in capsys.readouterr().err


def test_interrupted_while_writing(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record before stays as it was, and no half of the next lies beside it."""
    write(
        house / "tests/benchmarks/second.py",
        SECOND.format(seconds=0).replace("raise KeyboardInterrupt", "return lambda: x"),
    )
    written = []

    def interrupted(self: Path, target: Path) -> None:
        written.append(target)
        if len(written) == 2:
            raise KeyboardInterrupt
        os.replace(self, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    assert bench(house) == 130
    (record,) = records(house)
    assert {row["case"] for row in record["rows"]} == {"first"}


def test_a_real_interrupt(house: Path) -> None:
    """Ctrl-C at a process of its own, while its second case runs."""
    write(house / "tests/benchmarks/second.py", SECOND.format(seconds=60))
    script = f"""
        import signal
        import sys
        from pathlib import Path
        import tests.benchmarks
        from tests.benchmarks import __main__, method, runner

        signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
        runner.ROOT = Path({str(house)!r})
        method.ceilings = lambda device: {{}}
        tests.benchmarks.__path__.append({str((house / "tests/benchmarks/first.py").parent)!r})
        sys.exit(__main__.main(["--device", "cpu", "--out", {str(house / "out")!r}]))
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=MINUTES)
    assert process.returncode == 130
    assert "Traceback" not in printed and "interrupted: what was measured is in" in printed
    (record,) = records(house)
    assert {row["case"] for row in record["rows"]} == {"first"}


# ---- the command line -----------------------------------------------------------------------------------------------


def test_list_shows_every_case_with_its_question(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(house, "--list") == 0
    assert capsys.readouterr().out.split(maxsplit=1) == ["first", "Is two x the same as x and x?\n"]
    assert not (house / "out").exists()


def test_an_unknown_case_is_met_with_close_names(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(house / "tests/benchmarks/first.py", house / "tests/benchmarks/other_thing.py")
    assert bench(house, "frist") == 2
    assert capsys.readouterr().err == "no such case: frist; expected one of: first\n"
    assert bench(house, "first", "zzz") == 2
    assert capsys.readouterr().err == "no such case: zzz; expected one of: first, other-thing\n"
    assert not (house / "out").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["--device", "cuda", "first"]) == 2
    assert "this PyTorch sees no GPU" in capsys.readouterr().err


def test_skip_fresh_measures_what_changed_and_only_that(house: Path) -> None:
    bench(house, "first")
    assert bench(house, "--skip-fresh") == 0
    assert len(records(house)) == 1, "nothing changed, nothing to measure"
    edit(house / "tests/benchmarks/first.py", "Is two x the same as x and x?", "Is x and x the same as two x?")
    assert bench(house, "--skip-fresh") == 0
    assert len(records(house)) == 1, "nothing that counts changed"
    edit(house / "snippets/doubled.py", "x + x", "2 * x")
    make_old(house)
    bench(house, "--skip-fresh")
    assert len(records(house)) == 2


def test_a_run_goes_on_at_the_point_where_it_stopped(house: Path) -> None:
    edit(house / "tests/benchmarks/first.py", *TWO)
    bench(house, "first")
    make_old(house)
    (path,) = (house / "out").glob("*.json")
    content = json.loads(path.read_text())
    assert {row["direction"] for row in content["rows"]} == {"forward", "backward"}
    content["rows"] = [row for row in content["rows"] if row["direction"] == "forward"]
    path.write_text(json.dumps(content))
    assert bench(house, "--skip-fresh") == 0
    (newest,) = set((house / "out").glob("*.json")) - {path}
    assert {row["direction"] for row in json.loads(newest.read_text())["rows"]} == {"backward"}


def test_the_first_point_of_each_case_comes_first() -> None:
    todo = {"a": [1, 2, 3], "b": [4], "c": [5, 6]}
    assert runner.in_rounds(todo) == [("a", 1), ("b", 4), ("c", 5), ("a", 2), ("c", 6), ("a", 3)]


def test_after_the_seconds_no_point_begins_and_a_line_says_how_to_go_on(
    house: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(house / "tests/benchmarks/first.py", *TWO)
    clock = itertools.count()  # a second passes whenever the runner looks
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: next(clock), perf_counter=time.perf_counter))
    assert bench(house, "--seconds", "0.5") == 0
    assert {row["direction"] for (record,) in [records(house)] for row in record["rows"]} == {"forward"}
    line = "1 of 2 points are from this machine; `nox -s bench -- --skip-fresh` measures the rest"
    assert capsys.readouterr().out.splitlines()[-1] == line
    assert bench(house, "--skip-fresh", "--first") == 0
    assert capsys.readouterr().out.splitlines() == [line], "the case has a point, and who asks for first ones no more"
    assert len(records(house)) == 1


def test_only_the_modes_that_are_asked_for(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(house, "first", "--modes", "device", "burst") == 0
    assert "nothing to measure on this cpu" in capsys.readouterr().out
    assert bench(house, "first", "--modes", "calls") == 0
    assert {row["mode"] for (record,) in [records(house)] for row in record["rows"]} == {"calls"}


def test_only_the_points_that_are_asked_for(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(house / "tests/benchmarks/first.py", *TWO)
    assert bench(house, "first", "--points", "2") == 0
    assert {row["direction"] for (record,) in [records(house)] for row in record["rows"]} == {"backward"}
    assert bench(house, "first", "--points", "3") == 0
    assert "nothing to measure on this cpu" in capsys.readouterr().out


def test_some_variants_are_timed_beside_the_baseline_and_leave_the_others_to_be_measured(house: Path) -> None:
    assert bench(house, "first", "--variants", "ours") == 0
    (record,) = records(house)
    assert record["variants"] == ["ours"] and not record["failures"], "what was not asked for is not built"
    assert {row["variant"] for row in record["rows"]} == {"eager", "ours"}
    assert "--variants ours" in record["command"]
    make_old(house)
    assert bench(house, "--skip-fresh", "--variants", "ours") == 0
    assert len(records(house)) == 1, "the same variants are fresh"
    assert bench(house, "--skip-fresh") == 0
    (newest,) = (record for record in records(house) if not record["variants"])
    assert "peer" in [failure["variant"] for failure in newest["failures"]]


def test_a_peer_that_is_not_installed_is_absent_and_no_failure(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = house / "tests/benchmarks/first.py"
    edit(
        case,
        '"two": Variant',
        '"absent": Variant(lambda: __import__("no_such_peer.ops")),\n                "two": Variant',
    )
    bench(house, "first")
    (record,) = records(house)
    assert record["absent"] == {"absent": "no_such_peer"}
    assert {failure["variant"] for failure in record["failures"]} == {"wrong", "peer", "two"}
    assert "no_such_peer is not installed here: older rows of absent stay as they are\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("reason", "package"),
    [
        ("ModuleNotFoundError: No module named 'quack.ops'", "quack"),
        ("InductorError: BACKEND='FLASH' but CUTE flash attention library is not available", "flash_attn"),
        ("ValueError: No module named 'quack'", ""),
    ],
)
def test_what_a_failure_lacks(reason: str, package: str) -> None:
    assert runner.lacking(reason) == package


def test_a_table_says_what_each_case_took(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(house / "tests/benchmarks/first.py", *TWO)
    bench(house, "first")
    head, row, rows = capsys.readouterr().out.splitlines()[-3:]
    assert head.split() == ["case", "points", "building", "alone"]
    name, points, building, _, alone, _ = row.split()
    assert (name, points) == ("first", "2") and float(building) >= 0 and float(alone) >= 0
    assert rows.startswith("4 rows in ")


def test_points_that_no_page_shows_are_measured_on_request(house: Path) -> None:
    edit(house / "tests/benchmarks/first.py", TWO[0], TWO[1].replace('"calls",))]', '"calls",), shown=False)]'))
    assert bench(house, "first") == 0
    assert bench(house, "first", "--all") == 0
    assert bench(house, "first", "--points", "2") == 0
    found = [{row["direction"] for row in record["rows"]} for record in records(house)]
    assert found == [{"forward"}, {"forward", "backward"}, {"backward"}]


def test_kernels_are_counted_between_spins() -> None:
    names = [
        "refresh",
        "spin_kernel(long)",
        "a",
        "Memcpy HtoD",
        "b",
        "spin_kernel(long)",
        "Memset",
        "spin_kernel(long)",
    ]
    assert method.launched(names) == [1, 2, 0]


@pytest.mark.parametrize("difference", ["machine", "software", "truncated"])
def test_what_another_machine_or_version_measured_is_not_fresh(house: Path, difference: str) -> None:
    bench(house, "first")
    make_old(house)
    (path,) = (house / "out").glob("*.json")
    text = path.read_text()
    content = json.loads(text)
    content["machine"]["slug"] = "other"
    content["software"]["torch"] = "2.0"
    keep = json.loads(text) | ({} if difference == "truncated" else {difference: content[difference]})
    path.write_text(text[:100] if difference == "truncated" else json.dumps(keep))
    bench(house, "--skip-fresh")
    assert len(list((house / "out").glob("*.json"))) == 2


@pytest.mark.parametrize(("kernels", "again"), [((None, None), False), ((3, None), True), ((3, 3), False)])
def test_what_the_profiler_did_not_see_is_measured_again_where_it_sees_others(
    house: Path, kernels: tuple[int | None, int | None], again: bool
) -> None:
    bench(house, "first")
    make_old(house)
    (path,) = (house / "out").glob("*.json")
    content = json.loads(path.read_text())
    (row,) = [row for row in content["rows"] if row["variant"] == "eager"]
    other = row | {"shape": {"elements": 9}, "kernels": kernels[0]}
    path.write_text(json.dumps(content | {"rows": [other, row | {"kernels": kernels[1]}]}))
    bench(house, "--skip-fresh")
    assert len(list((house / "out").glob("*.json"))) == 1 + again


def test_a_case_with_no_points_here_leaves_no_record(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(house / "tests/benchmarks/first.py", '[Point({"elements": 8}, "float32", modes=("calls",))]', "[]")
    assert bench(house) == 0
    assert "nothing to measure on this cpu" in capsys.readouterr().out
    assert not (house / "out").exists()


def make_old(house: Path) -> None:
    """Two records of one second would share their file's name."""
    for path in (house / "out").glob("*.json"):
        path.rename(path.with_name(f"2020-{path.name}"))


@pytest.mark.parametrize("alone", ({"alone": True}, {"alone": False, "calls": True}), ids=("device", "host"))
def test_runs_that_share_a_device_build_together_and_time_alone(
    alone: dict[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # another run on this machine may be timing
    device, entered = torch.device("cpu"), queue.Queue()

    def enter(**how: bool) -> None:
        with machine.turn(device, **how):
            entered.put(how)

    def start(**how: bool) -> threading.Thread:
        thread = threading.Thread(target=enter, kwargs=how, daemon=True)
        thread.start()
        return thread

    with machine.turn(device, alone=False):
        start(alone=False)  # at the same time
        assert entered.get(timeout=MINUTES) == {"alone": False}
        timing = start(**alone)
        timing.join(0.3)
        assert entered.empty()
    assert entered.get(timeout=MINUTES) == alone
    with machine.turn(device, **alone):
        building = start(alone=False)
        building.join(0.3)
        assert entered.empty()
    assert entered.get(timeout=MINUTES) == {"alone": False}


def wait_until_held(gate: Path) -> None:
    """Until another has the lock of this file."""
    with gate.open("w") as file:
        for _ in range(100 * MINUTES):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(0.01)
    raise AssertionError(f"nobody has taken {gate}")


def test_who_wants_to_be_alone_is_not_kept_out_by_those_who_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(machine, "PATIENCE", 0.0)
    device, order, first, leave = torch.device("cpu"), [], threading.Event(), threading.Event()

    def build() -> None:
        with machine.turn(device, alone=False):
            first.set()
            leave.wait(MINUTES)

    def time_alone() -> None:
        with machine.turn(device, alone=True):
            order.append("times")

    def build_later() -> None:
        with machine.turn(device, alone=False):
            order.append("builds")

    threads = [threading.Thread(target=step, daemon=True) for step in (build, time_alone, build_later)]
    threads[0].start()
    assert first.wait(MINUTES)
    threads[1].start()
    wait_until_held(next(path for path in tmp_path.glob("*.gate") if "host" not in path.name))
    threads[2].start()
    threads[2].join(0.3)
    assert order == [], "the second that builds waits behind the one that times"
    leave.set()
    for thread in threads:
        thread.join(MINUTES)
    assert order == ["times", "builds"]


def test_runs_that_begin_together_write_two_files(tmp_path: Path) -> None:
    begun = [runner.Record(tmp_path, torch.device("cpu"), "bench", "c" * 40) for _ in range(2)]
    assert begun[0].path != begun[1].path


@pytest.mark.parametrize("parse", (command_line.parse, sweeps_command_line.parse), ids=("cases", "sweeps"))
def test_a_commit_that_is_none_is_refused(parse: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["--commit", "4f98e0a"]).commit == "4f98e0a"
    with pytest.raises(SystemExit):
        parse(["--commit", "none"])
    assert "expected the hash of a commit, got 'none'" in capsys.readouterr().err


def test_a_clock_that_was_set_back_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    device, entered = torch.device("cpu"), threading.Event()
    with machine.turn(device, alone=True):
        pass
    tomorrow = time.time() + 86400
    for gate in tmp_path.glob("*.gate"):
        os.utime(gate, (tomorrow, tomorrow))

    def build() -> None:
        with machine.turn(device, alone=False):
            entered.set()

    threading.Thread(target=build, daemon=True).start()
    assert entered.wait(60)


def test_those_who_wait_are_alone_one_after_another_before_anybody_builds_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(machine, "GRACE", 2.0)  # a busy machine may stall a thread between its two modes
    device, order = torch.device("cpu"), []

    def time_in_two_modes(name: str) -> None:
        for mode in "ab":
            with machine.turn(device, alone=True):
                order.append(f"{name}{mode}")
                time.sleep(0.1)

    def build() -> None:
        with machine.turn(device, alone=False):
            order.append("builds")

    with machine.turn(device, alone=False):
        threads = [threading.Thread(target=time_in_two_modes, args=(name,), daemon=True) for name in "12"]
        for thread in threads:
            thread.start()
        build()  # nobody has waited long
        monkeypatch.setattr(machine, "PATIENCE", 0.0)
        threads.append(threading.Thread(target=time_in_two_modes, args=("3",), daemon=True))
        threads[-1].start()
        wait_until_held(next(path for path in tmp_path.glob("*.gate") if "host" not in path.name))
        threads.append(threading.Thread(target=build, daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join(MINUTES)
    assert order[0] == order[-1] == "builds" and sorted(order[1:-1]) == ["1a", "1b", "2a", "2b", "3a", "3b"]
