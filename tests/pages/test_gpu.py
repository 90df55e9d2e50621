"""Processes of tests that share a GPU: each has a claim of its memory while it needs much, and none waits for ever."""

import fcntl
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests import gpu

GIB = gpu.GIB


def test_claims_together_are_never_more_than_there_is(tmp_path: Path):
    now, most, lock = [0], [0], threading.Lock()

    def uses(wanted: int) -> None:
        for _ in range(5):
            with gpu.claimed(tmp_path, "0", wanted, 5):
                with lock:
                    now[0] += wanted
                    most[0] = max(most[0], now[0])
                time.sleep(0.001)
                with lock:
                    now[0] -= wanted

    threads = [threading.Thread(target=uses, args=(wanted,)) for wanted in (1, 2, 3, 3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert now == [0] and 3 <= most[0] <= 5


def test_a_large_claim_is_not_passed_by_smaller_ones(tmp_path: Path):
    got = []

    def claims(wanted: int) -> None:
        with gpu.claimed(tmp_path, "0", wanted, 5):
            got.append(wanted)

    with gpu.claimed(tmp_path, "0", 3, 5):
        large = threading.Thread(target=claims, args=(5,))
        large.start()
        with (tmp_path / "0-gate").open("w") as gate:
            for _ in range(10_000):  # until it stands at the gate
                try:
                    fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    break
                fcntl.flock(gate, fcntl.LOCK_UN)
                time.sleep(0.001)
        small = threading.Thread(target=claims, args=(1,))
        small.start()
    large.join()
    small.join()
    assert got == [5, 1]


def test_another_gpu_is_another_claim(tmp_path: Path):
    with gpu.claimed(tmp_path, "0", 5, 5), gpu.claimed(tmp_path, "1", 5, 5):
        pass


def test_what_takes_little_claims_nothing_and_no_test_claims_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    asked = []
    claimed = gpu.claimed
    monkeypatch.setattr(gpu, "CLAIMS", tmp_path)
    monkeypatch.setattr(
        gpu, "claimed", lambda folder, of, *numbers: asked.append(numbers) or claimed(folder, of, *numbers)
    )
    monkeypatch.setattr(gpu, "memory_of_each", lambda: [80 * GIB])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    with gpu.room(GIB - 1):
        assert not asked
    with gpu.room(20 * GIB), gpu.room(20 * GIB):
        assert asked == [(20, 32)]
    with gpu.room(gpu.ALL):
        assert asked == [(20, 32), (32, 32)]


@pytest.mark.parametrize(
    ("memory", "processes"),
    (([80 * GIB], 16), ([80 * GIB, 80 * GIB], 32), ([24 * GIB, 80 * GIB], 8), ([2 * GIB], 1)),
    ids=str,
)
def test_how_many_processes_have_room(memory: list[int], processes: int):
    assert gpu.most(memory) == processes


def test_wherever_the_number_of_processes_comes_from_it_is_lowered(
    monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
):
    """Before pytest-xdist reads it: of hooks, the last one listed is called first."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "memory_of_each", lambda: [80 * GIB])
    for asked, most in ((None, 16), (48, 16), (3, 3)):
        option = SimpleNamespace(maxprocesses=asked)
        gpu.pytest_cmdline_main(SimpleNamespace(option=option, pluginmanager=pytestconfig.pluginmanager))
        assert option.maxprocesses == most
    hooks = [hook.plugin for hook in pytestconfig.hook.pytest_cmdline_main.get_hookimpls()]
    assert hooks.index(gpu) > hooks.index(pytestconfig.pluginmanager.get_plugin("xdist"))


def test_who_measures_waits_until_nobody_is_there_and_lets_nobody_in(tmp_path: Path):
    took = []

    def measures() -> None:
        with gpu.turn(tmp_path, alone=True), (tmp_path / "turn").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                took.append("not alone")
            except BlockingIOError:
                took.append("alone")

    with gpu.turn(tmp_path, alone=False):
        thread = threading.Thread(target=measures)
        thread.start()
        with gpu.turn(tmp_path, alone=False):
            took.append("beside")
    thread.join()
    assert took == ["beside", "alone"]


def test_on_a_gpu_what_measures_comes_last(monkeypatch: pytest.MonkeyPatch):
    marks = {"a": None, "measures": pytest.mark.idle_gpu, "b": None}
    items = [SimpleNamespace(name=name, get_closest_marker=lambda _, m=mark: m) for name, mark in marks.items()]
    gpu.pytest_collection_modifyitems(items)
    before = [item.name for item in items]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    gpu.pytest_collection_modifyitems(items)
    after = [item.name for item in items]
    assert (before, after) == (["a", "measures", "b"], ["a", "b", "measures"])
