"""kernels/add_rms_norm.py: the same functions as x + residual and F.rms_norm, wherever and however it is called."""

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.compiled import AHEAD, LOAD, ROOT_OF, MachineCode
from tests.kernels.conftest import load
from tests.kernels.promises import DTYPES, GPU, Promises, largest_partial_sum, placed, randn

EPS = 1e-6
MACHINE_CODE = MachineCode(
    known=(
        ("_forward_kernel", "residual = tl.load(residual_ptr + rows", *LOAD),
        ("_forward_kernel", "rstd = tl.rsqrt(tl.sum(h * h, axis=1)", *ROOT_OF),
        ("_backward_kernel", "dx += tl.load(dh_ptr + rows", *AHEAD),
    ),
    spills={
        ("_backward_wide_kernel", "sm_80"): (88, "a row of 32768 fills the registers; not measured"),
        ("_backward_wide_kernel", "sm_90"): (64, "a row of 32768: still the fastest of the sweep's plans"),
        ("_backward_wide_kernel", "sm_100"): (200, "a row of 32768 fills the registers; not measured"),
    },
    narrow=2,
    small=("_sum_shares_kernel",),
)
OWN = {  # definitions of the kernel file: see tests/pages/test_copies.py
    "_add _nested _row_kernel": "of two inputs, x and residual",
    "_backward_launch": "rms_norm",
}


class TestAddRMSNorm(Promises):
    kernel = load("add_rms_norm")
    name = "add_rms_norm"
    inputs = ("x", "residual", "weight")
    outputs = ("output", "new_residual")
    PATHS = (100, 9000, 12000, 40000)
    MOST_COLUMNS = 2**26
    LAUNCHES = 3
    OPTIONAL = ("weight",)
    SUMS = ("_sum_shares_kernel",)

    def plain(self, x, residual, weight, eps=EPS):
        h = x + residual
        return F.rms_norm(h, h.shape[-1:], weight, eps), h

    def make(self, shape, dtype, device, other=None, seed=0):
        weight = randn(shape[-1], other or dtype, device, seed + 20, offset=1)
        return randn(shape, dtype, device, seed), randn(shape, other or dtype, device, seed + 10), weight

    def summands(self, arguments, grads, reference):
        x, residual, weight, dy, dh = *arguments, *grads
        h = x + residual
        rstd = (h.square().mean(-1, keepdim=True) + EPS).rsqrt()
        h_hat, g = h * rstd, dy * weight
        mean = (g * h_hat).mean(-1, keepdim=True)
        of_h = max((torch.maximum(g.abs(), (h_hat * mean).abs()) * rstd).max().item(), dh.abs().max().item())
        return {
            "new_residual": max(x.abs().max().item(), residual.abs().max().item()),
            "x.grad": of_h,
            "residual.grad": of_h,
            "weight.grad": largest_partial_sum(dy * h_hat),
        }

    def opchecks(self, device):
        x, residual, weight = self.make((3, 100), torch.bfloat16, device)
        dy, dh = randn((3, 100), torch.bfloat16, device, 1), randn((3, 100), torch.bfloat16, device, 2)
        forward, backward = self.kernel._forward_op, self.kernel._backward_op
        _, h, rstd = forward(x, residual, weight, EPS, x.dtype, True)
        half = x[:, :50], residual[:, 50:].float(), weight[:50]
        same, mixed = (torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32)
        return (
            (forward, (x, residual, weight, EPS, x.dtype, False)),
            (forward, (*half, EPS, torch.float32, True)),
            (forward, (x, residual, None, EPS, x.dtype, True)),
            (backward, (dy, dh, h, weight, rstd, *same, True)),
            (backward, (dy, None, h, weight, rstd, *mixed, True)),
            (backward, (dy, dh, h, None, rstd, *mixed, False)),
        )

    # ---- the sum ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_new_residual_is_the_add_to_the_bit_and_the_norm_is_of_it(self, dtype, path, device):
        x, residual, weight = self.make((3, path), dtype, device)
        y, h = self.function(x, residual, weight)
        assert torch.equal(h, x + residual)
        twice = self.function(h, torch.zeros_like(h), weight)  # h + 0 rounds nothing
        assert torch.equal(twice[0], y) and torch.equal(twice[1], h)

    def test_one_tensor_as_both_addends(self, device):
        x, _, weight = self.make((3, 100), torch.float32, device)
        dy, dh = randn((3, 100), torch.float32, device, 1), randn((3, 100), torch.float32, device, 2)
        for function in (self.function, self.plain):
            x.grad = None
            outputs = function(x.requires_grad_(), x, weight)
            torch.autograd.backward(outputs, (dy, dh))
            if function == self.function:
                ours = x.grad
        torch.testing.assert_close(ours, x.grad)

    # ---- gradients from two sides -------------------------------------------------------------------------------

    @pytest.mark.parametrize("used", ((0,), (1,)), ids=("norm", "new_residual"))
    @pytest.mark.parametrize("dtypes", ((torch.float32,) * 2, (torch.float16, torch.float32)), ids=str)
    def test_gradient_that_comes_from_one_side_only(self, used, dtypes, path, device):
        x, residual, weight = self.make((3, path), dtypes[0], device, dtypes[1])
        leaves = [t.requires_grad_() for t in (x, residual, weight)]
        grads = self.incoming([t.detach() for t in self.plain(*leaves)])
        gradients = {}
        for function in (self.function, self.plain):
            outputs = function(*leaves)
            gradients[function] = torch.autograd.grad(
                [outputs[i] for i in used], leaves, [grads[i] for i in used], allow_unused=True
            )
        for name, ours, plain in zip(self.inputs, gradients[self.function], gradients[self.plain], strict=True):
            assert (ours is None) == (plain is None), name
            if plain is not None:
                assert ours.dtype == plain.dtype, name
                torch.testing.assert_close(ours, plain, rtol=1e-2, atol=1e-2, msg=lambda text, n=name: f"{n}: {text}")

    def test_the_stream_is_not_read_where_no_gradient_comes_from_it(self, device, monkeypatch):
        x, residual, weight = self.make((3, 100), torch.float32, device)
        seen = []
        real = self.kernel._backward_op
        monkeypatch.setattr(
            self.kernel, "_backward_op", lambda dy, dh, *rest: (seen.append(dh), real(dy, dh, *rest))[1]
        )
        y, _ = self.function(x.requires_grad_(), residual, weight)
        y.sum().backward()
        assert seen == [None]

    @pytest.mark.parametrize("dtypes", ((torch.float32,) * 2, (torch.float32, torch.float16)), ids=str)
    @pytest.mark.parametrize("used", ((0, 1), (0,), (1,)), ids=("both", "norm", "new_residual"))
    def test_leaves_never_share_a_gradient(self, used, dtypes, device):
        """One tensor is the gradient of both addends; what is accumulated into one must not show in the other."""
        x, residual, weight = self.make((3, 100), dtypes[0], device, dtypes[1])
        leaves = [t.requires_grad_() for t in (x, residual, weight)]
        outputs = self.function(*leaves)
        grads = self.incoming([y.detach() for y in outputs])
        kept = [t.clone() for t in grads]
        torch.autograd.backward([outputs[i] for i in used], [grads[i] for i in used])
        before = residual.grad.clone()
        x.grad.add_(1)
        assert torch.equal(residual.grad, before)
        assert all(torch.equal(t, copy) for t, copy in zip(grads, kept, strict=True))

    # ---- as rms_norm --------------------------------------------------------------------------------------------

    def test_strided_weight(self, device):
        x, residual, _ = self.make((3, 40), torch.float32, device)
        self.check((x, residual, randn(80, torch.float32, device)[::2]))

    def test_eps(self, device):
        x, residual, weight = self.make((5, 1000), torch.float32, device)
        for eps in (1e-6, 1, 0.5):
            torch.testing.assert_close(self.function(x, residual, weight, eps), self.plain(x, residual, weight, eps))
        torch.testing.assert_close(self.function(x, residual, weight), self.plain(x, residual, weight, 1e-6))
        wide = x.repeat(1, 17), residual.repeat(1, 17), weight.repeat(17)  # too long for one look
        torch.testing.assert_close(self.function(*wide, 0.5), self.plain(*wide, 0.5))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_eps_none_is_what_pytorch_takes(self, dtype, device):
        x, residual, weight = self.make((5, 100), dtype, device)
        x, residual = x * 1e-3, residual * 1e-3  # the mean square lies between the eps of fp32 and of 16-bit dtypes
        for enabled in (False, True):
            with torch.autocast(device.type, torch.bfloat16, enabled=enabled):
                for given in (weight, None):
                    ours, plain = (f(x, residual, given, None) for f in (self.function, self.plain))
                    torch.testing.assert_close(ours, plain)

    @pytest.mark.parametrize("eps", ("1e-6", torch.ones(8), (8,)), ids=("text", "tensor", "shape"))
    def test_eps_that_is_no_number_is_named(self, eps, device):
        x, residual, weight = self.make((2, 8), torch.float32, device)
        with pytest.raises(TypeError, match=f"eps: expected a number or None, got {type(eps)}"):
            self.function(x, residual, weight, eps)

    @pytest.mark.parametrize("given", (True, False), ids=("frozen", "none"))
    def test_compiles_as_one_graph_without_a_gradient_of_weight(self, given, path, device, monkeypatch):
        torch._dynamo.reset()
        x, residual, weight = self.make((3, path), torch.float32, device)
        weight = weight if given else None
        dx = torch.autograd.grad(self.function(x.requires_grad_(), residual, weight), x, (x, x))[0]
        monkeypatch.setattr(self.kernel, "_sum_shares_kernel", None)  # cannot be launched
        compiled = torch.compile(self.function, fullgraph=True, backend="inductor" if GPU else "aot_eager")
        assert torch.equal(torch.autograd.grad(compiled(x, residual, weight), x, (x, x))[0], dx)

    @pytest.mark.parametrize("dtypes", ((torch.bfloat16,) * 2, (torch.bfloat16, torch.float32)), ids=str)
    @pytest.mark.parametrize("stream", (True, False), ids=("both", "norm"))
    def test_gradient_without_that_of_weight_takes_no_memory_for_it(self, stream, dtypes, path, device):
        x, residual, weight = self.make((3, path), dtypes[0], device, dtypes[1])
        _, h, rstd = self.kernel._forward_op(x, residual, weight, EPS, torch.float32, True)
        arguments = (x, residual if stream else None, h, weight, rstd, *dtypes)
        *alone, dweight = self.kernel._backward_op(*arguments, False)
        assert dweight.numel() == 0
        for ours, expected in zip(alone, self.kernel._backward_op(*arguments, True), strict=False):
            assert torch.equal(ours, expected)

    @pytest.mark.parametrize(
        "x, residual, weight, error, message",
        (
            (torch.ones(2, 8, dtype=torch.int32), torch.ones(2, 8), torch.ones(8), TypeError, "x: expected .*fp32.*32"),
            (torch.ones(2, 8), torch.ones(2, 8).double(), torch.ones(8), TypeError, "residual: expected .*float64"),
            (torch.ones(2, 8), torch.ones(2, 8), (8,), TypeError, "weight: expected .*tensor, got <class 'tuple'>"),
            (torch.ones(2, 8), None, torch.ones(8), TypeError, "residual: expected .*tensor, got <class 'NoneType'>"),
            (torch.ones(2, 8), 1.0, torch.ones(8), TypeError, "residual: expected .*tensor, got <class 'float'>"),
            (torch.ones(()), torch.ones(()), torch.ones(()), ValueError, "x: expected at least one dimension, "),
            (torch.ones(2, 8), torch.ones(8), torch.ones(8), ValueError,
             r"residual: expected the shape of x, \[2, 8\], got \[8\]"),
            (torch.ones(1, 8), torch.ones(2, 8), torch.ones(8), ValueError,
             r"residual: expected the shape of x, \[1, 8\], got \[2, 8\]"),
            (torch.ones(2, 8), torch.ones(2, 8), torch.ones(7), ValueError, r"weight: expected shape \[8\], got \[7\]"),
            (torch.ones(2, 8), torch.ones(2, 8, device="meta"), torch.ones(8), ValueError,
             "residual: expected on .*, where x is, got meta"),
            (torch.ones(2, 8), torch.ones(2, 8), torch.ones(8, device="meta"), ValueError,
             "weight: expected on .*, where x is, got meta"),
        ),
    )  # fmt: skip
    def test_wrong_input_is_named(self, x, residual, weight, error, message, device):
        with pytest.raises(error, match=message):
            self.function(placed(x, device), placed(residual, device), placed(weight, device))
