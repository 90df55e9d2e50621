"""Somebody's module: what is refused, with one clear message, and what stays as it was."""

import random

import pytest
import torch
from torch import nn

from snippets.validation.assistant import analyze
from snippets.validation.assistant.subject import Refused
from tests.snippets.validation.assistant.state import global_state
from tests.snippets.validation.planted import kernels
from tests.snippets.validation.planted.seen import faults

pytestmark = pytest.mark.usefixtures("one_core")


def test_a_compiled_module_is_looked_at_as_it_was_before():
    module = torch.compile(kernels.HeadByHead(), backend="eager")
    assert [one.kind for one in faults(analyze(module, kernels.sequence()).findings)] == ["small-kernels"]


class Raises(nn.Module):
    def forward(self, x):
        raise IndexError("no such row")


class Noisy(nn.Module):
    def forward(self, x):
        return x + float.fromhex("0x1p-3") * int.from_bytes(random.SystemRandom().randbytes(1), "big")


class TooLarge(nn.Module):
    def forward(self, x):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 TiB")


class TooLargeForTheHost(nn.Module):
    def forward(self, x):
        return torch.empty(2**48) + x


class Exits(nn.Module):
    def forward(self, x):
        raise SystemExit("no licence")


class Uncopiable(nn.Module):
    def __init__(self):
        super().__init__()
        self.stream = (number for number in range(3))

    def forward(self, x):
        return x


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Raises(), r"Raises raises IndexError at .*test_subject.py:\d+: no such row"),
        (Noisy(), "not deterministic"),
        (TooLarge(), "out of memory while TooLarge ran"),
        (TooLargeForTheHost(), "out of memory while TooLargeForTheHost ran"),
        (Exits(), r"Exits raises SystemExit at .*: no licence"),
        (nn.LazyLinear(8), "LazyLinear has parameters without a shape yet"),
        (nn.Linear(8, 8, device="meta"), "Linear is on meta"),
        (Uncopiable(), "Uncopiable cannot be copied"),
        (len, "expected a torch.nn.Module, got builtin"),
    ],
    ids=lambda one: type(one).__name__ if not isinstance(one, str) else "",
)
def test_a_bad_module_gets_one_clear_message(module, message):
    x = torch.randn(2)
    around = global_state()
    with pytest.raises(Refused, match=message) as refused:
        analyze(module, x)
    assert "\n" not in str(refused.value) and global_state() == around


def test_an_empty_batch_is_looked_at():
    assert analyze(nn.Linear(8, 8), torch.randn(0, 8)).facts.sizes == 1


def test_inputs_on_another_device():
    with pytest.raises(Refused, match="input 0 is on meta, and the module is on cpu"):
        analyze(nn.Linear(8, 8), torch.randn(4, 8, device="meta"))


def test_dropout_is_no_reason_to_refuse():
    report = analyze(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), torch.randn(4, 8))
    assert report.facts.breaks == 0


class Remembers(nn.Module):
    """Holds a result of its last call, as `torch.nn.utils.weight_norm` does, too."""

    def __init__(self):
        super().__init__()
        self.fc, self.last = nn.Linear(8, 8), None

    def forward(self, x):
        self.last = self.fc(x)
        return self.last


def test_a_module_that_holds_a_result_can_be_looked_at_after_a_call():
    module, x = Remembers(), torch.randn(4, 8)
    held = module(x)
    found = faults(analyze(module, x).findings)
    assert [(one.kind, one.line.text) for one in found] == [("kept-graph", "self.last = self.fc(x)")]
    assert module.last is held
