"""kernels/rms_norm.py: the same function as F.rms_norm, wherever and however it is called."""

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.compiled import INVERSE, LOAD, STORE, MachineCode
from tests.kernels.conftest import load
from tests.kernels.promises import DTYPES, GPU, Promises, largest_partial_sum, placed, randn

EPS = 1e-6
MACHINE_CODE = MachineCode(
    known=(
        ("_forward_wide_kernel", "block = tl.load(ptr + cols, mask=cols < N, other=0.0", *LOAD),
        ("_forward_wide_kernel", "tl.store(y_ptr + cols, y, mask=cols < N, cache_modifier=STORE)", *STORE),
        ("_backward_kernel", "mean = tl.sum(g * x_hat, axis=1) / N", *INVERSE),
    ),
    narrow=4,
    small=("_sum_shares_kernel",),
)


class TestRMSNorm(Promises):
    kernel = load("rms_norm")
    name = "rms_norm"
    inputs = ("x", "weight")
    PATHS = (100, 9000, 12000, 40000)
    MOST_COLUMNS = 2**26
    LAUNCHES = 3
    OPTIONAL = ("weight",)
    SUMS = ("_sum_shares_kernel",)

    def plain(self, x, weight, eps=EPS):
        return F.rms_norm(x, x.shape[-1:], weight, eps)

    def make(self, shape, dtype, device, other=None, seed=0):
        return randn(shape, dtype, device, seed), randn(shape[-1], other or dtype, device, seed + 10, offset=1)

    def summands(self, arguments, grads, reference):
        x, weight, dy = *arguments, *grads
        rstd = (x.square().mean(-1, keepdim=True) + EPS).rsqrt()
        x_hat, g = x * rstd, dy * weight
        mean = (g * x_hat).mean(-1, keepdim=True)
        return {
            "x.grad": (torch.maximum(g.abs(), (x_hat * mean).abs()) * rstd).max().item(),
            "weight.grad": largest_partial_sum(dy * x_hat),
        }

    def opchecks(self, device):
        (x, weight), dy = self.make((3, 100), torch.bfloat16, device), randn((3, 100), torch.bfloat16, device)
        forward, backward = self.kernel._forward_op, self.kernel._backward_op
        rstd = forward(x, weight, EPS, x.dtype, True)[1]
        return (
            (forward, (x, weight, EPS, x.dtype, False)),
            (forward, (x[:, :50], weight[:50], EPS, torch.float32, True)),
            (forward, (x, None, EPS, x.dtype, True)),
            (backward, (dy, x, weight, rstd, True)),
            (backward, (dy, x, None, rstd, False)),
        )

    def test_strided_weight(self, device):
        x, _ = self.make((3, 40), torch.float32, device)
        self.check((x, randn(80, torch.float32, device)[::2]))

    def test_scale_of_the_row_does_not_matter(self, device):
        x, weight = self.make((5, 1000), torch.float32, device)
        assert torch.equal(self.function(x, weight, 0.0), self.function(x * 2.0**20, weight, 0.0))

    def test_eps(self, device):
        x, weight = self.make((5, 1000), torch.float32, device)
        for eps in (1e-6, 1, 0.5):
            torch.testing.assert_close(self.function(x, weight, eps), self.plain(x, weight, eps))
        torch.testing.assert_close(self.function(x, weight), self.plain(x, weight, 1e-6))
        wide = x.repeat(1, 9)
        torch.testing.assert_close(self.function(wide, weight.repeat(9), 0.5), self.plain(wide, weight.repeat(9), 0.5))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_eps_none_is_what_pytorch_takes(self, dtype, device):
        x, weight = self.make((5, 100), dtype, device)
        x *= 1e-3  # the mean square lies between the eps of fp32 and of the 16-bit dtypes
        for enabled in (False, True):
            with torch.autocast(device.type, torch.bfloat16, enabled=enabled):
                torch.testing.assert_close(self.function(x, weight, None), self.plain(x, weight, None))
                torch.testing.assert_close(self.function(x, None, None), self.plain(x, None, None))

    @pytest.mark.parametrize("eps", ("1e-6", torch.ones(8), (8,)), ids=("text", "tensor", "shape"))
    def test_eps_that_is_no_number_is_named(self, eps, device):
        x, weight = self.make((2, 8), torch.float32, device)
        with pytest.raises(TypeError, match=f"eps: expected a number or None, got {type(eps)}"):
            self.function(x, weight, eps)

    @pytest.mark.parametrize("given", (True, False), ids=("frozen", "none"))
    def test_compiles_as_one_graph_without_a_gradient_of_weight(self, given, path, device, monkeypatch):
        torch._dynamo.reset()
        x, weight = self.make((3, path), torch.float32, device)
        weight = weight if given else None
        dx = torch.autograd.grad(self.function(x.requires_grad_(), weight), x, x)[0]
        monkeypatch.setattr(self.kernel, "_sum_shares_kernel", None)  # cannot be launched
        compiled = torch.compile(self.function, fullgraph=True, backend="inductor" if GPU else "aot_eager")
        assert torch.equal(torch.autograd.grad(compiled(x, weight), x, x)[0], dx)

    def test_gradient_of_x_alone_takes_no_memory_for_that_of_weight(self, path, device):
        x, weight = self.make((3, path), torch.bfloat16, device)
        _, rstd = self.kernel._forward_op(x, weight, EPS, x.dtype, True)
        dx, dweight = self.kernel._backward_op(x, x, weight, rstd, False)
        assert dweight.numel() == 0
        assert torch.equal(dx, self.kernel._backward_op(x, x, weight, rstd, True)[0])

    @pytest.mark.parametrize(
        "x, weight, error, message",
        (
            (torch.ones(2, 8, dtype=torch.int32), torch.ones(8), TypeError, "x: expected .*fp32.* got torch.int32"),
            (torch.ones(2, 8), torch.ones(8).double(), TypeError, "weight: expected .*fp32.* got torch.float64"),
            (torch.ones(2, 8), (8,), TypeError, "weight: expected .*tensor, got <class 'tuple'>"),
            (None, torch.ones(8), TypeError, "x: expected .*tensor, got <class 'NoneType'>"),
            ([1.0], torch.ones(1), TypeError, "x: expected .*tensor, got <class 'list'>"),
            (torch.ones(2, 8), torch.ones(7), ValueError, r"weight: expected shape \[8\], got \[7\]"),
            (torch.ones(2, 8), torch.ones(2, 8), ValueError, r"weight: expected shape \[8\], got \[2, 8\]"),
            (torch.ones(()), torch.ones(()), ValueError, "x: expected at least one dimension, got none"),
            (torch.ones(2, 8), torch.ones(8, device="meta"), ValueError, "weight: expected on .*, where x is, got me"),
        ),
    )  # fmt: skip
    def test_wrong_input_is_named(self, x, weight, error, message, device):
        with pytest.raises(error, match=message):
            self.function(placed(x, device), placed(weight, device))
