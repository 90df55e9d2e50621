"""The site's timer: on a CPU by calls of known length, on a GPU by what it must see and what it must refuse."""

import gc
import itertools
import time

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from snippets.validation import timing
from snippets.validation.timing import (
    DeviceTimer,
    Timing,
    calls_in_a_sample,
    captured,
    measure,
    seconds_per_call,
    yardstick,
)

CPU = torch.device("cpu")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


# ---- anywhere -------------------------------------------------------------------------------------------------------


def test_a_call_of_known_length(clock):
    timings = measure({"sleeps": lambda: clock.sleep(0.005)}, "cpu", "calls", rounds=9)
    assert timings["sleeps"] == Timing(*[pytest.approx(0.005)] * 3, samples=9)


def test_seconds_are_those_of_the_world():
    assert seconds_per_call(lambda: time.sleep(0.005), CPU) >= 0.005


def test_a_short_call_is_batched(clock):
    """To look at the clock takes as long as this call: its time must come from many."""
    clock.look, calls = 1e-6, itertools.count()
    seconds = seconds_per_call(lambda: (next(calls), clock.sleep(1e-6)), CPU, at_least=0.01)
    assert next(calls) > 1000
    assert seconds == pytest.approx(1e-6, rel=1e-3)


def test_every_sample_lasts_long_enough(clock):
    batches = []
    monotonic = clock.perf_counter
    clock.perf_counter = lambda: batches.append(monotonic()) or batches[-1]
    seconds_per_call(lambda: clock.sleep(0.001), CPU, at_least=0.02)
    assert batches[-1] - batches[-2] >= 0.02


def test_rounds_interleave_and_rotate(monkeypatch):
    order = []
    monkeypatch.setattr(timing, "seconds_per_call", lambda call, device, about: (call(), 1.0)[1])
    measure({name: lambda name=name: order.append(name) for name in "abc"}, "cpu", "calls", rounds=4)
    assert "".join(order) == "aaabbbccc" + "abc" + "bca" + "cab" + "abc"


@pytest.mark.parametrize(("patience", "samples"), [(0.0, 5), (7.5, 8), (100.0, 30)])
def test_no_new_round_when_patience_ends(monkeypatch, clock, patience, samples):
    monkeypatch.setattr(timing, "seconds_per_call", lambda call, device, about: (clock.sleep(1.0), 1.0)[1])
    assert measure({"a": int}, "cpu", "calls", rounds=30, patience=patience)["a"].samples == samples


def test_inputs_are_put_back_before_each_sample_and_not_timed(monkeypatch, clock):
    monkeypatch.setattr(timing, "seconds_per_call", lambda call, device, about: timing.seconds_of(call, device, 1))
    left = []

    def refresh():
        clock.sleep(7.0)
        left[:] = [1]

    timings = measure(
        {"in place": lambda: (left.pop(), clock.sleep(0.5)), "other": lambda: clock.sleep(0.25)},
        "cpu", "calls", rounds=3, refresh={"in place": refresh},
    )  # fmt: skip
    assert (timings["in place"].p50, timings["other"].p50) == (0.5, 0.25)


@pytest.mark.parametrize(
    ("fast", "slow", "calls"), [(1.01e-4, 2e-4, 30), (2e-3, 4e-3, 10), (1e-4, 3.9e-3, 25), (1e-5, 0.02, 10)]
)
def test_a_burst_is_as_many_calls_for_each(clock, fast, slow, calls):
    """Three milliseconds of the fastest, but no tenth of a second of the slowest, and never less than ten."""
    device = torch.device("cpu")
    both = {name: lambda seconds=seconds: clock.sleep(seconds) for name, seconds in (("a", fast), ("b", slow))}
    assert calls_in_a_sample("burst", both, device) == calls


def test_the_yardstick_of_a_host_is_no_operation_and_one(monkeypatch):
    class Counts(TorchDispatchMode):
        operations = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.operations += 1
            return func(*args, **(kwargs or {}))

    def measured(steps, device, mode, **_):
        assert (device, mode) == (CPU, "calls")
        found = {}
        for name, step in steps.items():
            with Counts() as counts:
                step()
            found[name] = Timing(0.0, counts.operations, 9.0, 5)
        return found

    monkeypatch.setattr(timing, "measure", measured)
    assert yardstick(CPU) == {"python_call": 0, "eager_launch": 1}


def test_a_host_has_a_yardstick():
    assert all(0 < seconds < 60 for seconds in yardstick(CPU).values())


def test_nothing_to_time():
    assert measure({}, "cpu", "calls") == {}


@pytest.mark.parametrize("on", [True, False])
def test_garbage_collection_is_off_meanwhile_and_then_as_it_was(on, clock):
    seen = []
    was_on = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        measure({"a": lambda: seen.append(gc.isenabled()) or clock.sleep(0.02)}, "cpu", "calls", rounds=2)
        assert gc.isenabled() == on
    finally:
        (gc.enable if was_on else gc.disable)()
    assert seen[3:] == [False] * 2  # the first three warm up


def test_garbage_collection_comes_back_after_an_error(monkeypatch):
    monkeypatch.setattr(timing, "seconds_per_call", lambda call, device, about: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        measure({"a": int}, "cpu", "calls")
    assert gc.isenabled()


@pytest.mark.parametrize("mode", ["wall", "events", ""])
def test_unknown_mode_is_refused(mode):
    with pytest.raises(ValueError, match=f"expected device, graph, calls, burst, sustained, got '{mode}'"):
        measure({"a": int}, "cpu", mode)


@pytest.mark.parametrize("mode", ["device", "graph", "burst", "sustained"])
def test_a_cpu_has_one_mode(mode):
    with pytest.raises(ValueError, match="a CPU has only 'calls'"):
        measure({"a": int}, "cpu", mode)


def test_quantiles():
    assert Timing.of([float(n) for n in range(10, -1, -1)]) == Timing(p20=2.0, p50=5.0, p80=8.0, samples=11)
    assert Timing.of([3.0]) == Timing(3.0, 3.0, 3.0, 1)
    assert Timing.of([1.0, 1.0, 1.0, 100.0]).p50 == 1.0  # an outlier moves a mean


# ---- on a GPU -------------------------------------------------------------------------------------------------------


@pytest.fixture
def device():
    return torch.device("cuda")


@gpu
def test_a_copy_is_slower_than_the_datasheet_allows(device):
    """A gigabyte in and out, at no more than 8 TB/s (a B200's figure, the fastest memory sold) and no less than 0.1."""
    x = torch.empty(2**28, device=device).normal_()
    rate = 2 * x.nbytes / measure({"copy": lambda: x.neg()}, device, "device", rounds=9)["copy"].p50
    assert 0.1e12 < rate < 8e12


@gpu
@pytest.mark.idle_gpu
def test_small_kernels_are_timed_without_the_host(device):
    """Sixty-four launches take the host 200 us or more; the GPU, with the launches queued, far less."""
    x = torch.zeros(1024, device=device)

    def call():
        for _ in range(64):
            x.neg()

    on_device, by_calls = (measure({"": call}, device, mode, rounds=9)[""].p50 for mode in ("device", "calls"))
    replayed = measure({"": call}, device, "graph", rounds=9)[""]
    assert on_device < by_calls
    assert replayed.p50 < by_calls and replayed.calls > 1


@gpu
@pytest.mark.idle_gpu
def test_a_slow_host_is_waited_for(device):
    """20 ms between two kernels on the host: the spin grows until the host is ahead, and the sleep is not counted."""
    x = torch.zeros(1024, device=device)
    timer = DeviceTimer(device)
    spin = timer.spin_cycles
    assert timer.sample(lambda: (x.neg(), time.sleep(0.02), x.neg())) < 0.001
    assert timer.spin_cycles > spin


@gpu
@pytest.mark.parametrize("wait", [lambda x: x.sum().item(), lambda x: torch.cuda.synchronize(), lambda x: x.cpu()])
def test_a_call_that_waits_for_the_gpu_is_refused(device, wait):
    x = torch.zeros(1024, device=device)
    with pytest.raises(RuntimeError, match=r"the host never got ahead of the GPU.*mode='calls'"):
        DeviceTimer(device).sample(lambda: wait(x))


@gpu
def test_a_backward_is_timed_whole(device):
    """The engine launches from a thread of its own: its kernels must lie between the events all the same."""
    x = torch.randn(2**26, device=device, requires_grad=True)
    y, gradient = x.sin(), torch.randn(2**26, device=device)
    seconds = measure({"": lambda: torch.autograd.grad(y, x, gradient, retain_graph=True)}, device, "device", rounds=9)[
        ""
    ].p50
    assert 3 * x.nbytes / seconds < 8e12


@gpu
@pytest.mark.idle_gpu
def test_cold_inputs_come_from_memory(device):
    """Sixteen megabytes stay in the cache between calls, unless it is flushed."""
    call = torch.randn(2**22, device=device).neg
    cold, warm = DeviceTimer(device), DeviceTimer(device, cold=False)
    assert sorted(cold.sample(call) for _ in range(21))[10] > sorted(warm.sample(call) for _ in range(21))[10]


@gpu
def test_a_replay_computes_again(device):
    x = torch.ones(1024, device=device)
    replay = captured(lambda: x * 2)
    output = replay()
    x.fill_(3)
    output.fill_(float("nan"))  # a replay that skipped the kernel would leave this
    assert replay() is output
    assert output.eq(6).all()


@gpu
@pytest.mark.idle_gpu
def test_a_graph_of_calls_holds_the_kernels_and_little_of_its_own_launch(device):
    """A hundred kernels of a microsecond or two: by themselves, each replay would take five or more."""
    x = torch.zeros(1024, device=device)
    alone = DeviceTimer(device, cold=False)
    once = captured(x.neg)
    many = min(measure({"": x.neg}, device, "graph", rounds=9)[""].p50 for _ in range(3))
    assert many < sorted(alone.sample(once) for _ in range(21))[10]


@gpu
@pytest.mark.idle_gpu
def test_burst_and_sustained_agree_with_calls_on_light_work(device):
    x = torch.randn(2**26, device=device)
    times = {  # the best of five: what else the GPU has to do makes some of them longer
        mode: min(measure({"": x.neg}, device, mode, rounds=3)[""].p50 for _ in range(5))
        for mode in ("calls", "burst", "sustained")
    }
    assert max(times.values()) < 1.5 * min(times.values()), times
