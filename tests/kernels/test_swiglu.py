"""kernels/swiglu.py: the same functions as F.silu(gate) * up and F.gelu(gate) * up, wherever and however called."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.kernels import compiled
from tests.kernels.compiled import POWER, STORE, MachineCode
from tests.kernels.conftest import load
from tests.kernels.promises import DTYPES, Promises, needs_gpu, placed, randn

kernel = load("swiglu")
MACHINE_CODE = MachineCode(
    known=(
        ("_forward_kernel", "share = 1 / (1 + tl.exp2(u", *POWER),
        ("_forward_kernel", "tl.store(y_ptr + places", *STORE),
        ("_backward_kernel", "tl.store(dup_ptr + places", *STORE),
    ),
)
OWN = {  # definitions of the kernel file: see tests/pages/test_copies.py
    "_ONCE _Once _checked _nested _places _refuse_transforms": "two functions of two inputs, and messages name which",
}


class Gated(Promises):
    """What both functions promise."""

    kernel = kernel
    inputs = ("gate", "up")
    PATHS = (100, 1500)

    def make(self, shape, dtype, device, other=None, seed=0):
        return randn(shape, dtype, device, seed), randn(shape, other or dtype, device, seed + 10)

    def beyond_count(self, device):
        _, columns = super().beyond_count(device)
        return (columns,)  # rows side by side are one long vector, of any length

    def opchecks(self, device):
        gate, up = self.make((3, 100), torch.bfloat16, device)
        dy = randn((3, 100), torch.bfloat16, device)
        forward, backward = self.kernel._forward_op, self.kernel._backward_op
        for activation in ("silu", "gelu", "gelu-tanh"):
            yield forward, (gate, up.half(), activation)
            yield backward, (dy.float(), gate, up.half(), activation)
        yield forward, (gate, None, "silu")
        yield forward, (gate[:, ::2], up[:, ::2], "silu")
        yield backward, (dy[:, :50], gate, None, "silu")
        yield backward, (dy[:, :50], gate[:, :50], up[:, 50:], "silu")

    def test_nan_and_inf_as_pytorch_and_in_their_row(self, path, device, monkeypatch):
        """As PyTorch in float64, or on a GPU: its fp32 GELU on a CPU makes a NaN of inf."""
        exact = self.plain
        monkeypatch.setattr(self, "plain", lambda *inputs: exact(*(t.double() for t in inputs)), raising=False)
        super().test_nan_and_inf_as_pytorch_and_in_their_row(path, device)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_no_dimension_as_pytorch(self, dtype, device):
        self.check(self.make((), dtype, device))

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


def phi(x):
    """The normal distribution function, to the last digit in its lower tail."""
    return torch.special.erfc(-x / 2**0.5) / 2


def promoted(gate, up):
    dtype = torch.promote_types(gate.dtype, up.dtype)
    return gate.to(dtype), up.to(dtype)


class Halves(Promises):
    """Without up: gate and up are halves of one tensor, and so are their gradients."""

    kernel = kernel
    name = "swiglu"
    inputs = ("x",)

    def plain(self, x):
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    def make(self, shape, dtype, device, other=None, seed=0):
        return (randn(shape, dtype, device, seed),)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", (2, 6, 254, 1000, 2256, 8194))
def test_halves_of_one_tensor(columns, dtype, device):
    Halves().check(Halves().make((5, columns), dtype, device))


@pytest.mark.parametrize(
    "promise, arguments",
    (
        ("test_any_leading_shape", ((2, 3, 8),)),
        ("test_empty_input", ((2, 0, 8),)),
        ("test_empty_input", ((3, 0),)),
        ("test_any_strides_of_inputs_and_of_incoming_gradients", ("every other column", 40)),
        ("test_any_strides_of_inputs_and_of_incoming_gradients", ("rows of a wider tensor", 2500)),
        ("test_leading_dimensions_that_no_view_joins", ()),
        ("test_rows_more_than_2_to_the_31_elements_apart", (96, 3, 2**30 + 16)),
        ("test_inputs_are_not_touched", (100,)),
        ("test_double_backward_is_refused", (torch.sum,)),
        ("test_backward_twice_through_one_graph", (100,)),
        ("test_activation_checkpointing", ()),
        ("test_compiles_as_one_graph", (False,)),
        ("test_compiles_as_one_graph", (True,)),
    ),
)
def test_halves_of_one_tensor_promise_the_same(promise, arguments, device):
    getattr(Halves(), promise)(*arguments, device)


@needs_gpu
def test_halves_of_more_than_2_to_the_31_elements_each(device):
    """Rows whose length 8 does not divide, so that not even their eights would fit into 32 bits."""
    rows = 2**31 // 1001 + 3
    few = randn((7, 2002), torch.bfloat16, device)
    ours = Halves()
    expected = ours.run(ours.function, (few,), (few[:, :1001],))
    many = few.repeat(rows // 7 + 1, 1)[:rows]
    for name, t in ours.run(ours.function, (many,), (many[:, :1001],)).items():
        assert torch.equal(t[:7], expected[name]), name
        assert torch.equal(t[rows - 7 :], expected[name].roll(-(rows % 7), 0)), name


class Odd(Gated):
    """Rows of which not even 2 divides the length, end to end."""

    name = "swiglu"

    def launches(self, columns, target):
        arguments = self.make((3, columns), torch.bfloat16, torch.device("cpu"))
        return compiled.recorded(kernel, lambda: self.run(self.function, arguments), target)


def test_contiguous_input_of_any_length_is_read_and_written_in_16_bytes():
    for facts in compiled.ahead(Odd, "sm_90", (12345,)):
        assert facts["kernel"] in ("_forward_kernel", "_backward_kernel")
        assert "128" in facts["loads"] and "128" in facts["stores"], facts  # beside the narrow ones of the last program


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
            (np.ones((2, 8), "f"), None, TypeError, "gate: expected .*tensor, got <class 'numpy.ndarray'>"),
            (torch.ones(2, 8), -1, TypeError, "up: expected .*tensor, got <class 'int'>"),  # F.glu's dim
            (torch.ones(2, 8), torch.ones(8), ValueError, r"up: expected shape \[2, 8\], as gate has, got \[8\]"),
            (torch.ones(2, 8), torch.ones(()), ValueError, r"up: expected shape \[2, 8\], as gate has, got \[\]"),
            (torch.ones(2, 7), None, ValueError, r"gate: expected an even last .*, for gate and up, got shape \[2, "),
            (torch.ones(()), None, ValueError, r"gate: expected an even last dimension.* got shape \[\]"),
            (torch.ones(2, 8), torch.ones(2, 8, device="meta"), ValueError, "up: expected on .*, where gate is, got m"),
        ),
    )  # fmt: skip
    def test_wrong_input_is_named(self, gate, up, error, message, device):
        with pytest.raises(error, match=message):
            self.function(placed(gate, device), placed(up, device))


class TestGeGLU(Gated):
    name = "geglu"
    GRID = (1, 3, 127, 1000, 4097, 32000)
    EDGES = GRID

    def plain(self, gate, up, approximate="none"):
        return F.gelu(gate, approximate=approximate) * up

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_tanh_approximation(self, dtype, device, monkeypatch):
        for name in ("function", "plain"):
            exact = getattr(self, name)
            monkeypatch.setattr(self, name, lambda *t, exact=exact: exact(*t, "tanh"), raising=False)
        self.check(self.make((7, 1000), dtype, device))
        gate = torch.linspace(-60, 60, 2001).to(device, dtype)
        self.check((gate, torch.ones_like(gate)))

    def test_tail_keeps_its_digits(self, device):
        """1 + erf(x) has none left at x = -4; torch's own result is off by more than a tenth at -5."""
        gate = torch.linspace(-12, 0, 5001, device=device)
        exact = gate.double() * phi(gate.double())
        assert ((self.function(gate, torch.ones_like(gate)) - exact).abs() <= 2e-5 * exact.abs()).all()

    @pytest.mark.parametrize("wrong", ("erf", None, True, ["none"], np.array(["none", "tanh"])), ids=str)
    def test_wrong_input_is_named(self, wrong, device):
        with pytest.raises(ValueError, match='approximate: expected "none" or "tanh", got ') as caught:
            self.kernel.geglu(*self.make((2, 8), torch.float32, device), wrong)
        assert str(caught.value).endswith(repr(wrong))
