"""The gate: its arithmetic, its verdicts on recorded noise, and the command as a reader's CI would call it."""

import json
import os
import random
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from snippets.validation import gate
from snippets.validation.gate import Machine, Side, interval, judge, paired, ratio_of, take_turns, unpaired
from snippets.validation.regressions_rates import LIMIT, louder, rates

GATE = Path(gate.__file__)
REAL = json.loads(Path(__file__).with_name("gate_pairs.json").read_text())


# ---- arithmetic -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "low", "high"),
    [(9, 0.0, float("inf")), (10, 1, 10), (13, 1, 13), (14, 2, 13), (20, 3, 18), (30, 7, 24)],
)
def test_the_interval_is_of_order_statistics(number, low, high):
    values = [float(value) for value in range(1, number + 1)]
    random.Random(0).shuffle(values)
    assert interval(values) == (low, high)


@pytest.mark.parametrize("draw", [random.Random.random, lambda chance: chance.lognormvariate(0, 3)])
def test_the_interval_misses_as_rarely_as_it_says(draw):
    """However skewed the distribution is. The median of each is known: 0.5 and 1."""
    chance, median = random.Random(0), 0.5 if draw is random.Random.random else 1.0
    drawn = [interval([draw(chance) for _ in range(12)], wrong=0.05) for _ in range(4000)]
    assert sum(low > median for low, _ in drawn) / 4000 < 0.06
    assert sum(high < median for _, high in drawn) / 4000 < 0.06
    assert sum(low > median or high < median for low, high in drawn) > 0, "it says something"


@pytest.mark.parametrize(
    ("ratio", "low", "high", "status"),
    [
        (1.00, 0.99, 1.01, "not slower"),
        (0.80, 0.70, 0.90, "not slower"),
        (1.01, 1.005, 1.015, "not slower"),  # slower without doubt, and by less than half the limit
        (1.05, 1.04, 1.06, "slower"),
        (1.03, 1.001, 1.04, "slower"),
        (1.04, 1.03, 1.045, "slower"),  # more work by 5% takes a little less than 5% longer
        (1.03, 0.99, 1.04, "not judged"),
        (1.02, 1.01, 1.06, "not judged"),
        (1.00, 0.90, 1.10, "not judged"),
        (1.00, 0.0, float("inf"), "not judged"),
    ],
)
def test_verdicts(ratio, low, high, status):
    assert judge(ratio, low, high, 0.05).status == status


def test_drift_cancels_between_neighbours_and_an_outlier_in_the_median():
    drift = [1.0 + 0.1 * step for step in range(9)]
    assert ratio_of(drift, [1.05 * value for value in drift]) == pytest.approx(1.05)
    assert ratio_of([1.0] * 9, [1.05] * 6 + [50.0] * 3) == pytest.approx(1.05)


def test_stored_numbers_are_compared_with_both_intervals():
    old, slow = [1.0 + 0.001 * step for step in range(12)], [1.05 + 0.001 * step for step in range(12)]
    assert unpaired(old, old, 0.05).status == "not slower"
    assert unpaired(old, slow, 0.05).status == "slower"
    assert unpaired(old[:5], slow[:5], 0.05).status == "not judged"
    found = unpaired(old, slow, 0.05)
    assert (found.low, found.high) == (1.05 / 1.011, 1.061 / 1.0)


@pytest.mark.parametrize(("cuda", "mps", "waits"), [(True, True, ["cuda"]), (False, True, ["mps"]), (False, False, [])])
def test_a_sample_waits_for_the_gpu_that_there_is(monkeypatch, cuda: bool, mps: bool, waits: list[str]):
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append("cuda"))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append("mps"))
    gate.seconds_per_call(lambda: None, 1)
    assert waited == waits * 2  # before the calls and after them


# ---- real noise -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", REAL)
def test_on_recorded_pairs_it_is_right_99_times_in_100(work):
    """Pairs of processes on a machine of four cores that others used too, drawn again and again."""
    assert rates(REAL[work]["same"])["not slower"] >= 0.99
    assert rates(REAL[work]["slow"])["slower"] >= 0.99


@pytest.mark.parametrize("work", REAL)
def test_with_more_noise_it_refuses_rather_than_errs(work):
    previous = -1.0
    for times in (1, 4, 16):
        same, slow = rates(louder(REAL[work]["same"], 1, times)), rates(louder(REAL[work]["slow"], 1 + LIMIT, times))
        assert same["slower"] <= 0.01 and slow["not slower"] <= 0.01
        assert same["not judged"] >= previous
        previous = same["not judged"]
    assert previous > 0.5


WORK = "def work():\n    return sum(number * number for number in range({}))\n"
# A clock that only the program moves: 10 us for each function that is entered or left, and 4 ms for each look.
CLOCK = """import sys
import time

from package import work

now = 0

def move(*_):
    global now
    now += 1

def look():
    global now
    now += 400
    return now * 1e-5

time.perf_counter = look
sys.setprofile(move)
"""
BENCHMARK = f"{CLOCK}\ndef benchmark():\n    print('preparing')\n    return work\n"


@pytest.fixture
def checkouts(tmp_path):
    """Two checkouts of the same package, and a benchmark in the new one."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "package.py").write_text(WORK.format(20 * 200))
    (tmp_path / "new" / "benchmark.py").write_text(BENCHMARK)
    return tmp_path


def call(checkouts, *options, samples=7, seconds=0.004):
    command = [
        sys.executable,
        str(GATE),
        "benchmark.py",
        "--samples",
        str(samples),
        "--seconds",
        str(seconds),
        *options,
    ]
    return subprocess.run(command, cwd=checkouts / "new", capture_output=True, text=True)


def test_unchanged_code_is_not_called_slower(checkouts):
    done = call(checkouts, "--old", "../old")
    assert (done.returncode, done.stdout[:32]) == (0, "not slower: benchmark takes 1.00"), done.stdout + done.stderr
    assert "pairs of processes" in done.stdout and "machine" in done.stdout


@pytest.mark.parametrize(("work", "said"), ((21, "1.04"), (40, "1.95")))
def test_more_work_is_slower(checkouts, work, said):
    (checkouts / "new" / "package.py").write_text(WORK.format(work * 200))
    done = call(checkouts, "--old", "../old")
    assert (done.returncode, done.stdout[:28]) == (1, f"slower: benchmark takes {said}"), done.stdout + done.stderr


def test_numbers_are_stored_and_compared_on_the_same_machine_only(checkouts, monkeypatch):
    few = {"samples": 3, "seconds": 0.001}
    assert call(checkouts, "--store", "base.json", **few).returncode == 0
    path = checkouts / "new" / "base.json"
    stored = json.loads(path.read_text())
    assert len(stored["seconds"]["benchmark"]) == len(stored["yardstick"]) == 12
    assert call(checkouts, "--against", "base.json", **few).returncode == 0
    path.write_text(json.dumps(stored | {"yardstick": [2 * seconds for seconds in stored["yardstick"]]}))
    assert "work that never changes takes 0." in call(checkouts, "--against", "base.json", **few).stdout
    path.write_text(json.dumps(stored | {"machine": "an abacus"}))
    refused = call(checkouts, "--against", "base.json", **few)
    assert refused.returncode == 3 and "of another machine (an abacus; this is " in refused.stdout


def test_a_benchmark_that_fails_is_no_verdict(checkouts):
    unfinished = "import sys\nprint('a line that does not end', end='', flush=True)\nsys.exit(7)\n"
    (checkouts / "old" / "package.py").write_text(unfinished)
    done = call(checkouts, "--old", "../old")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, "gate: the benchmark in ../old ended with status 7")
    assert call(checkouts, "--old", "../nowhere").returncode == 2


def test_each_benchmark_has_its_own_verdict(checkouts):
    (checkouts / "new" / "benchmark.py").write_text(
        f"{CLOCK}\ndef benchmark():\n    return {{'work': work, 'nothing': lambda: None}}\n"
    )
    sides = {
        name: Side(str(checkouts / "new" / "benchmark.py"), folder=str(checkouts / name)) for name in ("old", "new")
    }
    taken, used = take_turns(sides, 3, 0.001, random.Random(0))
    assert {name: {side: len(found) for side, found in by.items()} for name, by in taken.items()} == {
        "work": {"old": 3, "new": 3}, "nothing": {"old": 3, "new": 3},
    }  # fmt: skip
    assert used > 0
    assert statistics.median(taken["nothing"]["new"]) < statistics.median(taken["work"]["new"])


def test_the_file_works_alone(checkouts):
    """Copied beside a benchmark, and on its own Python, without this site's packages."""
    (checkouts / "new" / "gate.py").write_text(GATE.read_text())
    command = [sys.executable, "-I", "-S", "gate.py", "--help"]
    assert subprocess.run(command, cwd=checkouts / "new", capture_output=True).returncode == 0


def test_the_worst_verdict_is_the_exit_status(capsys):
    fine, slow = paired([1.0] * 10, 0.05), paired([1.1] * 10, 0.05)
    unclear = paired([1.0, 1.1] * 5, 0.05)
    assert gate.report({"a": fine}, 0.05, "") == 0
    assert gate.report({"a": fine, "b": unclear}, 0.05, "") == 3
    assert gate.report({"a": fine, "b": unclear, "c": slow}, 0.05, "") == 1
    assert "1 or 1.050? The noise hides it" in capsys.readouterr().out


def test_a_busy_machine_is_called_busy(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(machine, "before", (0.0, 0.0, 0.0))
    monkeypatch.setattr(Machine, "_processor", staticmethod(lambda: (100.0, 60.0, 0.0)))
    assert machine.said(own=20.0) == "machine busy: others used 40% of the processors, 0% went to other machines"
    assert machine.said(own=55.0).startswith("machine quiet: others used 5%")


# ---- the workflow ---------------------------------------------------------------------------------------------------

# In the place of `python`: an environment is a folder with such a program again, and pip notes what it was asked for.
STAND_IN = """#!/bin/sh
case "$1 $2" in
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip") echo "$@" >> {asked} ;;
"gate.py benchmark.py") {gate} ;;
*"/gate.py --serve") exec {python} "$@" ;;
*) exit 99 ;;
esac
"""


@pytest.fixture
def workflow():
    return pytest.importorskip("yaml").safe_load(GATE.with_suffix(".yml").read_text())


@pytest.fixture
def job(workflow, tmp_path):
    """`job(gate)`: the steps' commands, run as a runner does on a pull request that doubles the work, up to a failure.

    Where there is no `gate`, a shell command, in its place, the gate itself runs, with few samples.
    """
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "init.defaultBranch=main"]

    def git(*arguments, cwd=tmp_path / "origin"):
        subprocess.run(["git", *who, *arguments], cwd=cwd, check=True, capture_output=True)

    def commit(**files):
        for name, text in files.items():
            (tmp_path / "origin" / name.replace("__", ".")).write_text(text)
        git("add", "-A")
        git("commit", "-qm", "a change")

    (tmp_path / "origin").mkdir()
    git("init", "-q")
    commit(package__py=WORK.format(20 * 200), requirements__txt="torch==2.12\n")
    git("checkout", "-qb", "request")
    work = WORK.format(40 * 200)
    commit(package__py=work, requirements__txt="torch==2.13\n", benchmark__py=BENCHMARK, gate__py=GATE.read_text())
    git("checkout", "-q", "main")
    git("merge", "-q", "--no-ff", "--no-edit", "request")
    checkout, *steps = workflow["jobs"]["gate"]["steps"]
    depth = str(checkout["with"]["fetch-depth"])
    git("clone", "-q", "--depth", depth, f"file://{tmp_path}/origin", str(tmp_path / "new"), cwd=tmp_path)

    def run(gate=""):
        programs, python = tmp_path / "programs", shlex.quote(sys.executable)
        programs.mkdir()
        gate = gate or f'exec {python} "$@" --samples 7 --seconds 0.004'
        asked = shlex.quote(str(tmp_path / "asked"))
        (programs / "python").write_text(STAND_IN.format(asked=asked, gate=gate, python=python))
        (programs / "python").chmod(0o755)
        (tmp_path / "runner").mkdir()
        here = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "RUNNER_TEMP": str(tmp_path / "runner")}
        said = ""
        for step in steps:
            done = subprocess.run(
                ["bash", "-e", "-c", step["run"]],
                cwd=tmp_path / "new", env=os.environ | here, capture_output=True, text=True,
            )  # fmt: skip
            said += done.stdout + done.stderr
            if done.returncode:
                break
        return done.returncode, said

    return run


def test_the_workflow_compares_a_pull_request_with_its_base(job, tmp_path):
    status, said = job()
    assert (tmp_path / "runner" / "base" / "package.py").read_text() == WORK.format(20 * 200), said
    assert (tmp_path / "new" / "package.py").read_text() == WORK.format(40 * 200)
    asked = [line.split()[-1] for line in (tmp_path / "asked").read_text().splitlines()]
    assert asked == ["./requirements.txt", f"{tmp_path}/runner/base/requirements.txt"]
    assert status == 1 and "slower: benchmark takes 1.95" in said, said


@pytest.mark.parametrize(("gate_says", "job_ends"), [(0, 0), (1, 1), (2, 2), (3, 0)])
def test_only_what_is_not_judged_becomes_a_warning(job, gate_says, job_ends):
    status, said = job(f"exit {gate_says}")
    assert status == job_ends
    assert ("::warning::not judged" in said) == (gate_says == 3)


def test_the_workflow_runs_on_pull_requests_and_may_only_read(workflow):
    assert workflow[True] == "pull_request"  # YAML 1.1 reads `on` as a truth value
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["jobs"]["gate"]["runs-on"][0] == "self-hosted"
