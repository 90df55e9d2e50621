"""The mistakes must be mistakes, and the work that shows them must be what it says."""

import time

import pytest
import torch

from snippets.validation.timing import measure
from snippets.validation.timing_mistakes import event_pair, host_clock, mean_of_ten, negate, one_by_one, warm_cache

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CPU = torch.device("cpu")


@pytest.mark.parametrize(("kernels", "sign"), [(0, 1), (1, -1), (2, 1), (5, -1)])
def test_negate(kernels, sign):
    x = torch.randn(7)
    assert torch.equal(negate(x, kernels), sign * x)


def test_on_a_cpu_the_host_clock_is_right(clock):
    """No queue: the call returns when the work is done."""
    assert host_clock(lambda: clock.sleep(0.002), CPU).p50 == pytest.approx(0.002)


def test_one_by_one_times_whole_calls(clock):
    assert one_by_one(lambda: clock.sleep(0.002), CPU).p50 == pytest.approx(0.002)


def test_one_slow_call_moves_the_mean(clock):
    calls = iter([0.1] + 9 * [0.001])
    mean = mean_of_ten(lambda: clock.sleep(next(calls)), CPU)
    assert mean.samples == 1
    assert mean.p50 == pytest.approx(0.0109)  # the median is a tenth of this


@pytest.mark.skipif(torch.cuda.is_available(), reason="prints what a machine without a GPU prints")
def test_the_script_says_what_a_cpu_cannot_show(script):
    lines = script("snippets.validation.timing_mistakes").stdout.splitlines()
    assert lines[0].startswith("no GPU")
    assert [line.split(":")[0] for line in lines if line.endswith("us")] == [
        "1 x 16 MiB",
        "1 x 8 MiB",
        "32 x 0.0625 MiB",
    ]
    assert all(sum(name in line for line in lines) == 3 for name in ("one_by_one", "mean_of_ten"))


@gpu
@pytest.mark.idle_gpu
def test_each_mistake_on_a_gpu():
    device = torch.device("cuda")
    large, cached, small = (torch.randn(2**exponent, device=device) for exponent in (28, 22, 10))

    def right(call):
        return measure({"": call}, device, "device", rounds=9)[""].p50

    assert host_clock(large.neg, device).p50 < right(large.neg) / 5, "the host must not have waited"
    warm = min(warm_cache(cached.neg, device).p50 for _ in range(5))  # other work on the GPU makes some longer
    cold = min(right(cached.neg) for _ in range(5))
    assert warm < cold, "the inputs must have been in the cache"

    def late():
        small.neg()
        time.sleep(0.002)
        return small.neg()

    waits = [event_pair(late, device).p50 for _ in range(5)]  # a GPU that is busy for others may not have waited
    assert max(waits) > 0.002 > 10 * right(late), "the GPU must have waited for the host"
    assert one_by_one(small.neg, device).p50 > 2 * right(small.neg), "launch and wake-up must be in it"


@gpu
def test_the_script_on_a_gpu(script):
    printed = script("snippets.validation.timing_mistakes").stdout
    assert all(
        printed.count(name) == 3 for name in ("host_clock", "event_pair", "warm_cache", "one_by_one", "mean_of_ten")
    )
