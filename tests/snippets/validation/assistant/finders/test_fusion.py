"""Patterns: each is told once, in any spelling."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted import fusion
from tests.snippets.validation.planted.seen import evidence, faults, recorded

pytestmark = pytest.mark.usefixtures("one_core")


def test_softmax_with_dropout_outside_of_attention():
    class Gate(nn.Module):
        def forward(self, x):
            return F.dropout(x.softmax(-1), 0.1)

    assert [one.kind for one in faults(find(*evidence(lambda: (Gate(), torch.randn(8, 64)))))] == ["softmax-dropout"]


class Turned(nn.Module):
    """A rotary embedding that writes its two halves into a new tensor."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cos", torch.rand(16, 32))
        self.register_buffer("sin", torch.rand(16, 32))

    def forward(self, x):
        turned = torch.empty_like(x)
        turned[..., 0::2] = x[..., 0::2] * self.cos - x[..., 1::2] * self.sin
        turned[..., 1::2] = x[..., 0::2] * self.sin + x[..., 1::2] * self.cos
        return turned


class Mish(nn.Module):
    def forward(self, x):
        return x * torch.tanh(F.softplus(x))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def test_sums_with_products_between_them_are_no_chain():
    assert not faults(find(*evidence(lambda: (Residual(), fusion.sequence()))))


@pytest.mark.parametrize(
    ("module", "kind", "title"),
    [(Turned(), "rotary", "Rotary embedding written out"), (Mish(), "written-out", "Mish written out")],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_other_spellings(module, kind, title):
    (found,) = faults(find(*evidence(lambda: (module, fusion.sequence()))))
    assert (found.kind, found.title) == (kind, title)


class Turned(nn.Module):
    """A rotary embedding of two halves."""

    def forward(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def test_one_kernel_for_a_rotary_embedding_reads_and_writes_all_of_it():
    halves = torch.randn(64, 32), torch.randn(64, 32)
    (found,) = [
        one for one in find(*evidence(lambda: (Turned(), torch.randn(64, 64), *halves))) if one.kind == "rotary"
    ]
    assert found.evidence.endswith(f"one would move {2 * 4 * 64 * 64 / 1e3:.1f} KB")


class Gated(nn.Module):
    """A gate and what it lets through, of two products or of one."""

    def __init__(self, gate, together=False, wide=32):
        super().__init__()
        self.gate, self.together = gate, together
        self.a, self.b, self.both = nn.Linear(64, wide), nn.Linear(64, 32), nn.Linear(64, 64)
        self.out = nn.Linear(32, 64)

    def forward(self, x):
        gate, up = self.both(x).chunk(2, -1) if self.together else (self.a(x), self.b(x))
        return self.out(self.gate(gate)[..., :32] * up)


GATES = {
    "silu": (F.silu, {}, "kernels/swiglu.py"),
    "gelu": (F.gelu, {}, "kernels/swiglu.py"),
    "silu by hand": (lambda x: x * x.sigmoid(), {}, "kernels/swiglu.py"),
    "sigmoid": (torch.sigmoid, {}, "F.glu"),
    "a wider sigmoid": (torch.sigmoid, {"wide": 48}, "torch.compile"),
    "tanh": (torch.tanh, {}, "torch.compile"),
    "relu": (F.relu, {}, "torch.compile"),
    "mish": (lambda x: x * F.softplus(x).tanh(), {"together": True}, "torch.compile"),
    "sigmoid of one product": (torch.sigmoid, {"together": True}, "F.glu"),
}


@pytest.mark.parametrize(("gate", "options", "change"), GATES.values(), ids=GATES)
def test_a_gate_is_told_to_take_what_has_its_activation(gate, options, change):
    found = find(*recorded(lambda: (Gated(gate, **options), fusion.sequence())))
    (one,) = [each for each in found if each.kind == "gated-mlp"]
    assert change in one.change and ("swiglu" in one.change) is (change == "kernels/swiglu.py")
    assert ("stack the two weights" in one.change) is not options.get("together", False)
