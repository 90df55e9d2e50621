"""A crew of processes: what it measures, who stands still meanwhile, and what becomes of a process that fails."""

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.benchmarks import __main__ as command_line
from tests.benchmarks import crew, machine, method
from tests.benchmarks.case import Point
from tests.benchmarks.crew import Crew, Queue, Turns
from tests.benchmarks.runner import Found
from tests.benchmarks.test_runner import TWO, edit, records
from tests.benchmarks.test_runner import house as house

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are stopped on Linux only"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
CPU, MINUTES = torch.device("cpu"), 600.0
A, B = (("first", Point({"elements": elements}, "float32")) for elements in (1, 2))


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that begin at once; nothing here runs on a GPU."""
    monkeypatch.setattr(crew, "SPAWN", multiprocessing.get_context("fork"))


def outcomes(tasks: list, target: Any, number: int = 2, seconds: float = MINUTES) -> list:
    """What a crew measured, in its order."""
    begun = Crew(number, CPU, target)
    try:
        end = time.monotonic() + seconds
        return list(begun.outcomes(Queue(tasks, number), end, end))
    finally:
        begun.end()
        assert not any(worker.process.is_alive() for worker in begun.workers)


# ---- what is measured -----------------------------------------------------------------------------------------------


def test_a_crew_measures_what_one_process_does(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    root: Path = request.getfixturevalue("house")
    monkeypatch.setattr(method, "floor", lambda device: {"p50": 5e-6})
    edit(root / "tests/benchmarks/first.py", *TWO)
    for workers in ("0", "2"):
        assert command_line.main(["--device", "cpu", "--workers", workers, "--out", str(root / "out"), "first"]) == 0
    alone, beside = sorted(records(root), key=lambda record: record["crew"])
    assert (alone["crew"], beside["crew"]) == (0, 2)
    what = ("variant", "direction", "mode", "sources", "bytes_read", "error")
    rows = [sorted(json.dumps([row[key] for key in what]) for row in record["rows"]) for record in (alone, beside)]
    assert rows[0] == rows[1] and len(rows[0]) == 4
    assert sorted(map(json.dumps, alone["failures"])) == sorted(map(json.dumps, beside["failures"]))
    assert beside["floor"] == alone["floor"] == {"p50": 5e-6} and beside["ceilings"] == {}
    assert beside["seconds"].keys() == beside["alone"].keys() == alone["seconds"].keys()
    assert all(0 <= beside["alone"][at] <= seconds for at, seconds in beside["seconds"].items())


@pytest.mark.parametrize(
    ("cores", "gpu", "host", "size"),
    [
        (16, 79, 128, 13),
        (16, 40, 128, 6),
        (8, 79, 128, 7),
        (16, 79, 12, 4),
        (1, 79, 128, 0),
        (2, 79, 128, 0),
        (3, 79, 128, 2),
    ],
)
def test_how_many_processes(cores: int, gpu: int, host: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"SC_PAGE_SIZE": 2**30, "SC_PHYS_PAGES": host}
    monkeypatch.setattr(os, "sysconf", facts.get)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(cores))
    properties = SimpleNamespace(total_memory=gpu * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert crew.size(torch.device("cuda")) == size
    assert crew.size(CPU) == 0


# ---- turns ----------------------------------------------------------------------------------------------------------


def test_who_is_alone_sees_nobody_run() -> None:
    """Each counts as long as it runs, also while it waits, and looks at the other's count in its turn."""
    counts = [crew.SPAWN.Value("q", 0, lock=False) for _ in range(2)]

    def target(line: Any, stopped: Any, name: str) -> None:
        crew.begin()
        turns, own = Turns(line, stopped, CPU), line.recv()[0][1].shape["elements"] - 1

        def count() -> None:
            while True:
                counts[own].value += 1
                time.sleep(0.001)

        threading.Thread(target=count, daemon=True).start()
        seen = []
        for _ in range(4):
            time.sleep(0.05)
            with turns.turn():
                before = counts[1 - own].value
                time.sleep(0.05)
                seen.append(counts[1 - own].value - before)
        line.send(("done", (seen, turns.waited + stopped.value)))
        line.recv()

    found = [found for _, found in outcomes([A, B], target)]
    assert [seen for seen, _ in found] == [[0, 0, 0, 0]] * 2
    assert all(count.value for count in counts)
    assert any(lost > 0.05 for _, lost in found), "somebody has waited or stood"


def test_the_clock_stands_still_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.perf_counter()
    monkeypatch.setattr(machine, "time", SimpleNamespace(perf_counter=lambda: now + 10.0))
    monkeypatch.setattr(machine.beside, "lost", lambda: 4.0, raising=False)
    assert machine.clock() == pytest.approx(now + 6.0)


def test_what_libraries_time_while_they_build_has_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    line: Any = SimpleNamespace(send=lambda message: said.append(message[0]), recv=lambda: False)

    def do_bench(call: object, rep: int = 1) -> int:
        said.append("timed")
        return rep

    library = SimpleNamespace(do_bench=do_bench)
    monkeypatch.setattr(crew, "choosers", lambda: [(library, "do_bench")])
    for name in ("turn", "lost"):
        monkeypatch.setattr(machine.beside, name, getattr(machine.beside, name), raising=False)
    Turns(line, SimpleNamespace(value=0.0), CPU).take()
    with machine.turn(CPU, alone=True, builds=True):
        assert library.do_bench(None, rep=7) == 7
    assert said == ["turn", "timed", "over"]
    said.clear()
    chosen = machine.spent["choosing"]
    assert 0 < chosen <= machine.spent["alone"]
    with machine.turn(CPU, alone=True):
        library.do_bench(None)
    assert said == ["turn", "timed", "over"], "within a turn there is no other"
    assert machine.spent["choosing"] == chosen


def test_the_libraries_that_time_are_found() -> None:
    names = [name for _, name in crew.choosers()]
    assert "do_bench" in names and names.count("benchmark_gpu") > 1


def test_a_turn_begins_when_spins_take_equally_long_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others have queued on a GPU takes slices of its time, so that some spin takes longer."""
    shared, alone = [0.5, 0.5, 1.7, 0.5, 0.5], [0.5, 0.52, 0.5, 0.51, 0.5]
    spins = iter([*alone, *shared, *alone, *alone, *shared])

    class Event:
        def __init__(self, enable_timing: bool):
            pass

        def record(self) -> None:
            pass

        def elapsed_time(self, end: "Event") -> float:
            return next(spins)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    crew.settle(torch.device("cuda"))
    assert list(spins) == shared, "after the second time in a row"
    crew.settle(torch.device("cuda"), patience=0.0)
    crew.settle(CPU)


def test_a_point_begins_when_a_quarter_of_the_memory_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([10, 24, 26, 99])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (next(free), 100))
    crew.wait_for_room(torch.device("cuda"))
    assert next(free) == 99
    crew.wait_for_room(torch.device("cuda"), patience=0.0)
    crew.wait_for_room(CPU)


# ---- what fails -----------------------------------------------------------------------------------------------------


def failing(how: str, tries: Any) -> Any:
    """A process that fails at point A as often as `tries` says, and says of others that it measured them."""

    def target(line: Any, stopped: Any, name: str) -> None:
        crew.begin()
        while (said := line.recv()) != crew.END:
            task, crowded = said
            found: Any = {"ceilings": {"a": 1}} if task is None else Found(rows=[{"of": task[1].shape["elements"]}])
            if task == A and tries.value:
                tries.value -= 1
                if how == "dies":
                    os.kill(os.getpid(), signal.SIGTERM)
                elif how == "hangs":
                    time.sleep(MINUTES)
                elif how == "dies alone":
                    Turns(line, stopped, CPU).turn().__enter__()
                    os.kill(os.getpid(), signal.SIGKILL)
                found = Found(failures=[{"reason": f"OutOfMemoryError: CUDA out of memory, {crowded=}"}])
            line.send(("done", found))

    return target


def measured(target: Any) -> dict[int, Found]:
    record: Any = SimpleNamespace(content={})
    points = {"first": [A[1], B[1]]}
    found = {
        point.shape["elements"]: found for _, point, found in crew.side_by_side(points, CPU, record, 2, 300.0, target)
    }
    assert record.content == {"crew": 2, "ceilings": {"a": 1}}
    return found


@pytest.mark.usefixtures("house")
@pytest.mark.parametrize("how", ["dies", "hangs", "dies alone", "has no memory"])
def test_what_fails_beside_others_is_measured_again_alone(
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew, "PATIENCE", 1.0)
    found = measured(failing(how, crew.SPAWN.Value("i", 1)))
    assert [found[elements].rows for elements in (1, 2)] == [[{"of": 1}], [{"of": 2}]]


@pytest.mark.usefixtures("house")
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("dies", "the process that measured it died with status -15"),
        ("hangs", "the process that measured it hung for 1 s"),
        ("has no memory", "OutOfMemoryError: CUDA out of memory, crowded=False"),
    ],
)
def test_what_fails_again_is_said_and_loses_nothing_else(
    how: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew, "PATIENCE", 1.0)
    found = measured(failing(how, crew.SPAWN.Value("i", 3)))
    assert found[2].rows == [{"of": 2}] and not found[1].rows
    (failure,) = found[1].failures
    assert failure["reason"] == reason


def test_what_did_not_fit_comes_again_when_nothing_else_is_left_and_then_beside_a_quarter() -> None:
    queue = Queue([A, B], 13)
    assert queue.ready(12) and queue.take() == A and queue.put_back(A) and queue.take() == B
    assert not queue.ready(3) and queue.ready(2) and queue.take() == A, "it waits until few are busy"
    assert not queue.put_back(A)
    assert not queue.ready(0), "the rest is for a process that is alone"


@pytest.mark.usefixtures("house")
def test_a_point_at_which_processes_die_is_tried_twice() -> None:
    tries, record = multiprocessing.Value("i", 99), SimpleNamespace(content={})
    points: Any = {"first": [A[1]]}
    (found,) = crew.side_by_side(points, CPU, record, 8, 300.0, failing("dies", tries))  # type: ignore[arg-type]
    assert "died" in found[2].failures[0]["reason"] and tries.value == 97, "beside others, and alone"


def test_a_process_that_keeps_memory_measures_nothing_more() -> None:
    def target(line: Any, stopped: Any, name: str) -> None:
        crew.begin()
        while (task := line.recv()) != crew.END:
            line.send(("last" if task[0] == A else "done", os.getpid()))

    (_, first), (_, second), (_, third) = outcomes([A, B, B], target, number=1)
    assert first != second == third


def test_without_ceilings_nothing_is_kept() -> None:
    def target(line: Any, stopped: Any, name: str) -> None:
        while (said := line.recv()) != crew.END and said[0] is not crew.LIMITS:
            line.send(("done", Found()))
        os._exit(0 if said == crew.END else 3)

    record: Any = SimpleNamespace(content={})
    with pytest.raises(RuntimeError, match=r"ceilings of this machine: .* died with status 3"):
        list(crew.side_by_side({"first": [A[1]]}, CPU, record, 2, 300.0, target))


def test_at_the_end_what_was_begun_is_left() -> None:
    tries = crew.SPAWN.Value("i", 9)
    found = outcomes([A, B, B], failing("hangs", tries), seconds=1.0)
    assert [task for task, _ in found] == [B, B]
    begun = Crew(1, CPU, failing("hangs", tries))
    now = time.monotonic()
    assert not list(begun.outcomes(Queue([B], 2), now - 1, now + 9)), "nothing begins any more"
    begun.end()


def test_nobody_is_left_when_the_run_is_interrupted() -> None:
    before = {child.pid for child in multiprocessing.active_children()}
    record: Any = SimpleNamespace(content={})
    hangs = failing("hangs", crew.SPAWN.Value("i", 9))
    running = crew.side_by_side({"first": [B[1], A[1]]}, CPU, record, 2, 300.0, hangs)
    next(running)
    assert len({child.pid for child in multiprocessing.active_children()} - before) == 2
    running.close()
    assert {child.pid for child in multiprocessing.active_children()} == before


def test_a_process_begins_afresh_and_ends_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # as on a GPU: nothing is inherited
    worker = crew.Worker(crew.work, CPU)
    worker.give(A, crowded=False)
    assert worker.line.poll(MINUTES)
    with pytest.raises(EOFError):  # the case is not there, and the process says why and ends
        worker.line.recv()
    worker.process.join(MINUTES)
    assert worker.process.exitcode == 1
    worker.end()
