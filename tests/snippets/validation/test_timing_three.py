"""Three timers agree where they ask the same, and the table says what each includes."""

import re

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from snippets.validation import timing_three
from snippets.validation.timing_three import Timer, benchmark, table, timers

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CELL = r"\d+\.\d us"


def test_pytorchs_timer_times_a_call_with_the_threads_that_there_are():
    threads = []
    number = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = benchmark(lambda: threads.append(torch.get_num_threads()))
        several = set(threads)
        threads.clear()
        timers(torch.device("cpu"))["Timer, 1 thread"].seconds(lambda: threads.append(torch.get_num_threads()))
    finally:
        torch.set_num_threads(number)
    assert several == {2} and set(threads) == {1}
    assert 0 < found.median < 1


def test_pytorchs_timer_gives_the_threads_back_and_timeit_takes_one_sample():
    """As the page says."""
    number = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = torch.utils.benchmark.Timer("call()", globals={"call": lambda: None}).timeit(10)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(number)
    assert len(found.times) == 1 and found.median == found.mean


def test_every_statistic_has_a_line_with_a_time_for_each_call():
    two = Timer("memory", "none", lambda call: {"median": call(), "mean": 2 * call()})
    one = Timer("cache", "all", lambda call: {"median": 3 * call()})
    text = table({"two": two, "one": one}, {("softmax", "4x4"): lambda: 1e-6, ("softmax", "8x4"): lambda: 5e-6})
    names, shapes, *lines = (re.split(r" {2,}", line.strip()) for line in text.splitlines())
    assert names[-2:] == ["softmax", "softmax"] and shapes[-2:] == ["4x4", "8x4"]
    assert lines == [
        ["two: median", "memory", "none", "1.0 us", "5.0 us"],
        ["two: mean", "memory", "none", "2.0 us", "10.0 us"],
        ["one: median", "cache", "all", "3.0 us", "15.0 us"],
    ]


def test_a_gpu_has_timers_of_both_kinds_and_a_cpu_those_of_the_host():
    on_gpu, on_cpu = timers(torch.device("cuda")), timers(torch.device("cpu"))
    kinds = {name: (timer.inputs, timer.launches) for name, timer in on_gpu.items()}
    assert kinds["measure, device"] == ("memory", "none") and kinds["do_bench"] == ("memory", "if late")
    assert kinds["Timer"] == kinds["measure, calls"] == ("cache", "all")
    assert set(on_cpu) == {"measure, calls", "Timer", "Timer, 1 thread"}


def test_do_bench_gives_every_sample_in_seconds(monkeypatch):
    asked = []
    bench = lambda call, return_mode: asked.append(return_mode) or [1.0, 3.0]  # noqa: E731
    monkeypatch.setattr("triton.testing.do_bench", bench)
    assert timing_three.do_bench(lambda: None) == [1e-3, 3e-3] and asked == ["all"]
    found = timers(torch.device("cuda"))["do_bench"].seconds(lambda: None)
    assert found == {"median": 2e-3, "mean": 2e-3}


@pytest.mark.skipif(torch.cuda.is_available(), reason="prints what a machine without a GPU prints")
def test_without_a_gpu_the_script_shows_the_timers_of_a_cpu(script):
    lines = script("snippets.validation.timing_three").stdout.splitlines()[3:]
    assert [line.partition(":")[0] for line in lines] == ["measure, calls", "Timer", "Timer", "Timer, 1 thread"]
    assert all(len(re.findall(CELL, line)) == 3 for line in lines)


class Touched(TorchDispatchMode):
    """Counts the bytes of tensors that operations read or write between one call and the next."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes, self.before_calls = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.nbytes += sum(t.nbytes for t in tree_leaves((args, result)) if isinstance(t, torch.Tensor))
        return result

    def call(self) -> None:
        self.before_calls.append(self.nbytes)
        self.nbytes = 0


def whole_caches_before_the_last_call(timer: Timer, size: int) -> int:
    """What the timer does itself is counted, for the call that is timed does nothing."""
    with Touched() as touched:
        timer.seconds(touched.call)
    return touched.before_calls[-1] // size


def test_what_a_timer_reads_between_calls_is_counted():
    x = torch.ones(1000)
    flushes = Timer("memory", "all", lambda call: [(x.neg(), call()) for _ in range(3)])
    assert whole_caches_before_the_last_call(flushes, 4000) == 2  # what is read, and what is written
    assert whole_caches_before_the_last_call(timers(torch.device("cpu"))["Timer"], 1) == 0


@gpu
def test_timers_that_find_inputs_in_memory_flush_the_cache_before_a_call_and_the_others_nothing():
    """Counted, for two times agree only on an idle GPU. A graph is replayed, and its flush is not seen."""
    size = torch.cuda.get_device_properties(0).L2_cache_size
    flushed = {
        name: whole_caches_before_the_last_call(timer, size) > 0
        for name, timer in timers(torch.device("cuda")).items()
        if name != "measure, graph"
    }
    assert flushed == {"measure, device": True, "do_bench": True, "measure, calls": False, "Timer": False}


def test_operations_are_what_the_table_calls_them(monkeypatch):
    """On the CPU; that of a GPU has more of the same."""
    made = {}
    monkeypatch.setattr(timing_three, "fused", lambda x: made.setdefault("softmax", []).append(tuple(x.shape)))
    monkeypatch.setattr(
        timing_three, "written_out", lambda x: made.setdefault("written out", []).append(tuple(x.shape))
    )
    calls = timing_three.operations(torch.device("cpu"))
    for call in calls.values():
        call()
    shapes = {(name, "x".join(map(str, shape))) for name, found in made.items() for shape in found}
    assert shapes == set(calls)
