"""The gate: its arithmetic, its verdicts on real noise, and the command as a reader's CI would call it."""

import json
import random
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from snippets.validation import gate
from snippets.validation.gate import Machine, Side, interval, judge, paired, ratio_of, take_turns, unpaired
from snippets.validation.regressions import LIMIT, louder, rates

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
BENCHMARK = "from package import work\n\ndef benchmark():\n    print('preparing')\n    return work\n"


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


def never(checkouts, status):
    """With this machine's noise, whatever it is, a gate may refuse. It errs rarely, and not twice running."""
    done = [call(checkouts, "--old", "../old")]
    if done[0].returncode == status:
        done.append(call(checkouts, "--old", "../old"))
    assert done[-1].returncode in (0, 1, 3) and done[-1].returncode != status, done[-1].stdout + done[-1].stderr
    return done[-1].stdout


def test_unchanged_code_is_not_called_slower(checkouts):
    said = never(checkouts, 1)
    assert said.startswith(("not slower: benchmark takes ", "not judged: benchmark takes "))
    assert "pairs of processes" in said and "machine" in said


def test_five_per_cent_more_work_does_not_pass(checkouts):
    (checkouts / "new" / "package.py").write_text(WORK.format(21 * 200))
    assert never(checkouts, 0).startswith(("slower: benchmark takes 1.0", "not judged: benchmark takes "))


def test_twice_the_work_is_slower(checkouts):
    (checkouts / "new" / "package.py").write_text(WORK.format(40 * 200))
    assert never(checkouts, 0).startswith("slower: benchmark takes ")


def test_numbers_are_stored_and_compared_on_the_same_machine_only(checkouts, monkeypatch):
    few = {"samples": 3, "seconds": 0.001}
    assert call(checkouts, "--store", "base.json", **few).returncode == 0
    path = checkouts / "new" / "base.json"
    stored = json.loads(path.read_text())
    assert len(stored["seconds"]["benchmark"]) == len(stored["yardstick"]) == 12
    assert call(checkouts, "--against", "base.json", **few).returncode in (0, 1, 3)
    path.write_text(json.dumps(stored | {"yardstick": [2 * seconds for seconds in stored["yardstick"]]}))
    assert "work that never changes takes 0." in call(checkouts, "--against", "base.json", **few).stdout
    path.write_text(json.dumps(stored | {"machine": "an abacus"}))
    refused = call(checkouts, "--against", "base.json", **few)
    assert refused.returncode == 3 and "of another machine (an abacus; this is " in refused.stdout


def test_a_benchmark_that_fails_is_no_verdict(checkouts):
    (checkouts / "old" / "package.py").write_text("raise SystemExit(7)")
    done = call(checkouts, "--old", "../old")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, "gate: the benchmark in ../old ended with status 7")
    assert call(checkouts, "--old", "../nowhere").returncode == 2


def test_each_benchmark_has_its_own_verdict(checkouts):
    (checkouts / "new" / "benchmark.py").write_text(
        "from package import work\n\ndef benchmark():\n    return {'work': work, 'nothing': lambda: None}\n"
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
