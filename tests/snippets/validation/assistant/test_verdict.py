"""Validation: what is right, what is wrong, and which of two is slower."""

import copy
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.validation.assistant import clock, validate
from snippets.validation.assistant.clock import Timing
from snippets.validation.assistant.float64 import References, check_against, results_of
from snippets.validation.assistant.subject import Subject
from snippets.validation.assistant.verdict import Ratio, timed_backward

pytestmark = pytest.mark.usefixtures("one_core")


class Sine(nn.Module):
    """An output and a gradient that can be wrong apart."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(32, 32)

    def forward(self, x):
        return torch.sin(self.fc(x))


class Shifted(Sine):
    def forward(self, x):
        return torch.sin(self.fc(x)) + 1e-4


class NoGradient(Sine):
    def forward(self, x):
        return torch.sin(F.linear(x, self.fc.weight.detach(), self.fc.bias))


class HalfGradient(Sine):
    def forward(self, x):
        y = torch.sin(self.fc(x))
        return 0.5 * y + 0.5 * y.detach()


def test_validate_says_what_is_right_and_what_is_wrong(untimed):
    module, x = Sine(), torch.randn(16, 32, requires_grad=True)
    same = validate(module, copy.deepcopy(module), x, rounds=5)
    assert same.right and "gradient of input 0" in {check.name for check in same.checks}
    assert str(same).startswith("right (4 results within the bound); forward")
    for changed, name in ((Shifted, "output 0"), (NoGradient, "gradient of fc.weight"), (HalfGradient, "gradient of")):
        other, inputs = changed(), (x.detach().clone().requires_grad_(),)
        other.load_state_dict(module.state_dict())
        checks = check_against(References.of(Subject(module, (x,), {})), partial(results_of, other, inputs, {}))
        wrong = [check.name for check in checks if not check.holds]
        assert wrong and wrong[0].startswith(name)


def test_validate_finds_the_slower_one_and_the_larger_one(monkeypatch):
    """By a clock that only the modules move, so that no busy machine decides."""
    seconds = {Sine: 1.0, Shifted: 2.0}

    def seconds_of(call, device, calls):
        return calls * seconds[type(call.keywords["twin"].module)] if isinstance(call, partial) else 1.0

    monkeypatch.setattr(clock, "seconds_of", seconds_of)
    monkeypatch.setattr("snippets.validation.assistant.verdict.timed", timed_by_keyword)
    verdict = validate(Sine(), Shifted(), torch.randn(4, 32), rounds=5)
    words = {name: ratio.word for name, ratio in verdict.ratios.items()}
    assert words == {"forward": "slower", "backward": "as fast", "step": "slower"}  # the clock knows no backward
    assert verdict.ratios["step"].middle == 0.5


def timed_by_keyword(twins, run, rounds):
    calls = {str(number): partial(lambda twin: run(twin), twin=twin) for number, twin in enumerate(twins)}
    measured = clock.measure(calls, torch.device("cpu"), rounds)
    return measured["0"], measured["1"]


def test_the_backward_is_timed_alone(monkeypatch):
    """By a clock that a forward moves by a minute, and a backward by its module's seconds."""
    now = [0.0]
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    class Takes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, seconds):
            ctx.seconds = seconds
            now[0] += 60
            return x.clone()

        @staticmethod
        def backward(ctx, dy):
            now[0] += ctx.seconds
            return dy, None

    class Module(nn.Module):
        def __init__(self, seconds):
            super().__init__()
            self.fc, self.seconds = nn.Linear(4, 4), seconds

        def forward(self, x):
            return Takes.apply(self.fc(x), self.seconds)

    twins = [Subject(Module(seconds), (torch.randn(2, 4),), {}) for seconds in (2.0, 3.0)]
    assert [one.p50 for one in timed_backward(twins, rounds=5)] == [2.0, 3.0]
    assert timed_backward(twins, rounds=7, patience=math.inf)[0].samples == 7


def test_what_has_no_gradient_has_no_backward(untimed):
    module, x = Sine().requires_grad_(False), torch.randn(4, 32)
    assert list(validate(module, copy.deepcopy(module), x, rounds=5).times) == ["forward", "step"]


def test_a_compiled_backward_is_timed():
    """It writes over what the forward kept, so each needs a forward of its own."""
    compiled = torch.compile(Sine(), backend="aot_eager")
    twins = [Subject(module, (torch.randn(4, 32),), {}) for module in (Sine(), compiled)]
    assert all(0 < one.p50 < 60 for one in timed_backward(twins, rounds=5))


def test_two_equal_modules_are_as_fast():
    for before, after, word in ((1.0, 0.99, "as fast"), (1.0, 0.9, "faster"), (0.9, 1.0, "slower")):
        assert Ratio.of(Timing(before, before, before, 5), Timing(after, after, after, 5)).word == word
