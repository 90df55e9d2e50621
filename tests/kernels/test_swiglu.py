"""kernels/swiglu.py: the same functions as F.silu(gate) * up and F.gelu(gate) * up, wherever and however called."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.conftest import load
from tests.kernels.promises import DTYPES, Promises, randn

kernel = load("swiglu")


class Gated(Promises):
    """What both functions promise."""

    kernel = kernel
    inputs = ("gate", "up")
    PATHS = (100, 3000)

    def make(self, shape, dtype, device, other=None, seed=0):
        return randn(shape, dtype, device, seed), randn(shape, other or dtype, device, seed + 10)

    def opchecks(self, device):
        gate, up = self.make((3, 100), torch.bfloat16, device)
        dy = randn((3, 100), torch.bfloat16, device)
        forward, backward = kernel._forward_op, kernel._backward_op
        for activation in ("silu", "gelu", "gelu-tanh"):
            yield forward, (gate, up.half(), activation)
            yield backward, (dy.float(), gate, up.half(), activation)
        yield forward, (gate, None, "silu")
        yield forward, (gate[:, ::2], up[:, ::2], "silu")
        yield backward, (dy[:, :50], gate, None, "silu")
        yield backward, (dy[:, :50], gate[:, :50], up[:, 50:], "silu")

    @pytest.mark.parametrize("other", DTYPES, ids=str)
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_mixed_dtypes_and_autocast_as_pytorch(self, dtype, other, device, monkeypatch):
        arguments = self.make((5, 48), dtype, device, other)
        for enabled in (False, True):
            with torch.autocast(device.type, torch.bfloat16, enabled=enabled):
                ours, plain = self.run(self.function, arguments), self.run(self.plain, arguments)
            assert {n: t.dtype for n, t in ours.items()} == {n: t.dtype for n, t in plain.items()}, f"{enabled=}"
        # torch rounds silu(gate) to the dtype of gate before it meets up; the yardstick promotes first, and is stricter
        exact = type(self).plain
        monkeypatch.setattr(self, "plain", lambda gate, up: exact(self, *promoted(gate, up)), raising=False)
        self.check(arguments)


def promoted(gate, up):
    dtype = torch.promote_types(gate.dtype, up.dtype)
    return gate.to(dtype), up.to(dtype)


class TestSwiGLU(Gated):
    name = "swiglu"

    def plain(self, gate, up):
        return F.silu(gate) * up

    @pytest.mark.parametrize(
        "gate, up, error, message",
        (
            (torch.ones(2, 8, dtype=torch.int32), torch.ones(2, 8), TypeError, "gate: expected .*fp32.* got torch.in"),
            (torch.ones(2, 8), torch.ones(2, 8).double(), TypeError, "up: expected .*fp32.* got torch.float64"),
            (None, torch.ones(2, 8), TypeError, "gate: expected .*tensor, got <class 'NoneType'>"),
            (torch.ones(2, 8), [1.0], TypeError, "up: expected .*tensor, got <class 'list'>"),
            (torch.ones(2, 8), torch.ones(8), ValueError, r"up: expected shape \[2, 8\], as gate has, got \[8\]"),
            (torch.ones(2, 8), torch.ones(()), ValueError, r"up: expected shape \[2, 8\], as gate has, got \[\]"),
            (torch.ones(2, 7), None, ValueError, r"gate: expected an even last .*, for gate and up, got shape \[2, 7\]"),
            (torch.ones(()), None, ValueError, r"gate: expected an even last dimension.* got shape \[\]"),
            (torch.ones(2, 8), torch.ones(2, 8, device="meta"), ValueError, "up: expected on .*, where gate is, got me"),
        ),
    )  # fmt: skip
    def test_wrong_input_is_named(self, gate, up, error, message, device):
        def there(t):
            return t.to(device) if isinstance(t, torch.Tensor) and t.device.type != "meta" else t

        with pytest.raises(error, match=message):
            self.function(there(gate), there(up))


class TestGeGLU(Gated):
    name = "geglu"

    def plain(self, gate, up, approximate="none"):
        return F.gelu(gate, approximate=approximate) * up

    def test_wrong_input_is_named(self, device):
        with pytest.raises(ValueError, match='approximate: expected "none" or "tanh", got \'erf\''):
            self.function(*self.make((2, 8), torch.float32, device), "erf")
