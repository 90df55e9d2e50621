"""kernels/layer_norm.py: the same function as F.layer_norm, wherever and however it is called."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.benchmarks import stand_ins
from tests.kernels.compiled import LOAD, ROOT_OF, STORE, MachineCode
from tests.kernels.conftest import load
from tests.kernels.promises import (
    DTYPES,
    GPU,
    NO_LAYER_NORM,
    SOME,
    Promises,
    largest_partial_sum,
    placed,
    randn,
)  # fmt: skip

EPS = 1e-5
MACHINE_CODE = MachineCode(
    known=(
        ("_forward_kernel", "bias = tl.load(bias_ptr + cols", *LOAD),
        ("_forward_kernel", "rstd = tl.rsqrt(squares * inverse", *ROOT_OF),
        ("_backward_kernel", "tl.store(dx_ptr + rows[:, None] * N", *STORE),
    ),
    spills={
        ("_backward_wide_kernel", "sm_90"): (8, "two registers of 128: the fastest of the sweep's plans"),
        ("_backward_wide_kernel", "sm_100"): (8, "two registers of 128, as on sm_90; not measured on this GPU"),
    },
    narrow=8,
    small=("_sum_shares_kernel",),
)
OWN = {  # definitions of the kernel file: see tests/pages/test_copies.py
    "_alone _options _sum_launch _sum_shares_kernel": "swept for its own backward, which sums two gradients",
    "_AUTOCAST": "rms_norm",
}


class TestLayerNorm(Promises):
    kernel = load("layer_norm")
    name = "layer_norm"
    inputs = ("x", "weight", "bias")
    PATHS = (100, 2056, 9000, 24000, 40000, *((16000,) if GPU else ()))
    MOST_COLUMNS = 2**26
    WAITING = (40001, 65536, 131072, 524287)
    LAUNCHES = 3
    OPTIONAL = ("weight", "bias")
    SUMS = ("_sum_shares_kernel",)

    def plain(self, x, weight, bias, eps=EPS):
        """F.layer_norm; for a mix of dtypes, which it may refuse, the same in fp32 and rounded to the dtype of x."""
        autocast = x.is_cuda and torch.is_autocast_enabled("cuda")
        if autocast or all(t is None or t.dtype == x.dtype for t in (weight, bias)):
            return F.layer_norm(x, x.shape[-1:], weight, bias, eps)
        return F.layer_norm(x.float(), x.shape[-1:], weight.float(), bias.float(), eps).to(x.dtype)

    def make(self, shape, dtype, device, other=None, seed=0):
        weight = randn(shape[-1], other or dtype, device, seed + 10, offset=1)
        return randn(shape, dtype, device, seed), weight, randn(shape[-1], other or dtype, device, seed + 20)

    def summands(self, arguments, grads, reference):
        """Of the formulas in the kernel file; x and the mean, which is rounded, are as far from zero as `far`."""
        (x, weight, _), (dy,) = arguments, grads
        rstd = (x.var(-1, correction=0, keepdim=True) + EPS).rsqrt()
        far, g = (x * rstd).abs(), dy * weight
        x_hat = (x - x.mean(-1, keepdim=True)) * rstd
        mean = (g * x_hat).mean(-1, keepdim=True).abs()
        return {
            "output": (far * weight.abs()).max().item(),
            "x.grad": (torch.maximum(g.abs(), torch.maximum(far * mean, g.mean(-1, keepdim=True).abs())) * rstd)
            .max()
            .item(),
            "weight.grad": max((dy * far).abs().max().item(), largest_partial_sum(dy * x_hat)),
            "bias.grad": largest_partial_sum(dy),
        }

    def looks(self, columns, dtype):
        """Once for each way to look at a row: in registers, and twice where it is wide enough for that."""
        seen = set()
        for parts in (self.kernel._parts, lambda *_: 0):
            with stand_ins.replaced(self.kernel, _parts=parts):
                if (launched := self.launched(columns, dtype)) not in seen:
                    seen.add(launched)
                    yield

    def opchecks(self, device):
        x, weight, bias = self.make((3, 100), torch.bfloat16, device)
        dy = randn((3, 100), torch.bfloat16, device)
        forward, backward = self.kernel._forward_op, self.kernel._backward_op
        stats = forward(x, weight, bias, EPS, x.dtype, True)[1]
        return (
            (forward, (x, weight, bias, EPS, x.dtype, False)),
            (forward, (x[:, :50], weight[:50], bias[:50], EPS, torch.float32, True)),
            (forward, (x, None, bias, EPS, x.dtype, True)),
            (backward, (dy, x, weight, bias, stats, True)),
            (backward, (dy, x, weight, None, stats, True)),
            (backward, (dy, x, None, bias, stats, False)),
        )

    def test_gradient_only_where_it_is_asked_for(self, path, device):
        """To the bit; the output without gradients comes from a kernel without the two stores, compiled by itself."""
        arguments = self.make((SOME, path), torch.float32, device)
        expected = self.run(self.function, arguments)
        grads = self.incoming([expected["output"]])
        for index, name in enumerate(self.inputs):
            leaf = arguments[index].detach().requires_grad_()
            y = self.function(*arguments[:index], leaf, *arguments[index + 1 :])
            assert torch.equal(torch.autograd.grad(y, leaf, grads)[0], expected[f"{name}.grad"]), name
        for y in (self.function(*arguments), self.without_gradients(arguments)):
            assert not y.requires_grad
            torch.testing.assert_close(y, expected["output"], rtol=1e-6, atol=1e-6)

    def test_strided_weight_and_bias(self, device):
        x, _, _ = self.make((3, 40), torch.float32, device)
        parameters = randn((2, 80), torch.float32, device)[:, ::2]
        self.check((x, *parameters))

    def test_rows_far_from_zero(self, path, device):
        """Where the mean square less the squared mean has no digit left, the outputs still have a spread of 1."""
        x, weight, bias = self.make((SOME, path), torch.float32, device)
        x += 1e4
        self.check((x, weight, bias))
        spread = self.function(x, torch.ones_like(weight), torch.zeros_like(bias), 0.0).std(-1, correction=0)
        torch.testing.assert_close(spread, torch.ones_like(spread), rtol=1e-3, atol=0)

    def test_one_outlier_far_from_the_others(self, path, device):
        """In the first tile, in the last, and in the tile that hangs over the row's end."""
        for _ in self.looks(path, torch.float32):
            for at in (0, path // 2, path - 1):
                x, weight, bias = self.make((2, path), torch.float32, device)
                x[:, at] = 1e4
                self.check((x, weight, bias))

    def test_mean_and_rstd_are_those_of_the_row(self, path, device):
        x, weight, bias = self.make((3, path), torch.float32, device)
        mean, rstd = self.kernel._forward_op(x, weight, bias, EPS, x.dtype, True)[1]
        exact = x.double()
        torch.testing.assert_close(mean.double(), exact.mean(-1), rtol=0, atol=1e-6)
        torch.testing.assert_close(rstd.double(), (exact.var(-1, correction=0) + EPS).rsqrt(), rtol=1e-6, atol=0)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize(
        "width", (1, 3, 768, 1024, 3000, 8192, 9000, 16400, 40000, *(24000, 32768, 131072, 200000) * GPU)
    )
    def test_a_row_of_equal_numbers_is_the_bias(self, width, dtype, device):
        """To the bit, and nothing of it gets into the weight's gradient, however large the numbers are."""
        numbers = torch.tensor((3.3, 1000.1, 12345.67, -1e6, 65504, 1e30, 1e38)).to(device, dtype)
        numbers = numbers[numbers.isfinite()]
        x = numbers[:, None].expand(-1, width).contiguous()
        weight, bias = (randn(width, dtype, device, seed) for seed in (10, 20))
        dy = randn(x.shape, dtype, device, 100)
        g = dy.double() * weight.double()
        dx = (g - g.mean(-1, keepdim=True)) * EPS**-0.5
        for _ in self.looks(width, dtype):
            ours = self.run(self.function, (x, weight, bias), (dy,))
            stats = self.kernel._forward_op(x, weight, bias, EPS, dtype, True)[1]
            assert torch.equal(ours["output"], bias.expand_as(x)) and not ours["weight.grad"].any()
            assert torch.equal(stats[0], numbers.float())
            torch.testing.assert_close(stats[1], torch.full_like(stats[1], -(EPS**-0.5)))  # negated, for the backward
            torch.testing.assert_close(ours["x.grad"].double(), dx, rtol=torch.finfo(dtype).eps, atol=1e-3)

    def test_equal_numbers_and_eps_0_are_nan(self, path, device):
        """As PyTorch's: 0 times infinity, in the output and in the gradients of x and weight."""
        x, weight, bias = self.make((3, path), torch.float32, device)
        x[1] = 2
        ours = self.run(self.function, (x, weight, bias, 0.0))
        assert ours["output"].isnan().all(1).tolist() == ours["x.grad"].isnan().all(1).tolist() == [False, True, False]
        assert ours["weight.grad"].isnan().all() and ours["bias.grad"].isfinite().all()

    @pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
    @pytest.mark.parametrize("size", (1e19, 1e38, *(1e25, 1e30) * GPU))
    def test_rows_whose_variance_leaves_the_range_of_fp32(self, path, size, dtype, device):
        """They are the bias and have no gradient, as PyTorch's wherever its sums do not become NaN."""
        ramp = torch.linspace(-1, 1, path)
        outlier = torch.zeros(path).index_fill(0, torch.tensor(path // 2), 100.0)
        rows = (ramp, ramp + 1, ramp.abs() - 1.1, ramp.sign(), *((outlier / 100,) if size > 1e19 else ()))
        x = (torch.stack(rows) * size).to(device, dtype)
        _, weight, bias = self.make((1, path), dtype, device)
        plain = self.run(self.plain, (x, weight, bias))
        for _ in self.looks(path, dtype):
            ours = self.run(self.function, (x, weight, bias))
            assert torch.equal(ours["output"], bias.expand_as(x))
            assert not ours["x.grad"].any() and not ours["weight.grad"].any()
            for name in ("output", "x.grad", "weight.grad"):
                assert torch.equal(ours[name], torch.where(plain[name].isnan(), ours[name], plain[name])), name

    @pytest.mark.parametrize("value", (float("nan"), float("inf"), -float("inf")))
    def test_nan_and_inf_first_or_last_in_a_row(self, path, value, device):
        """Two looks count distances from one of the two; the last tile is masked."""
        x, weight, bias = self.make((3, path), torch.bfloat16, device)
        clean = self.function(x, weight, bias)
        for at in (0, path - 1):
            spoilt = x.clone()
            spoilt[1, at] = value
            y = self.function(spoilt, weight, bias)
            assert y[1].isnan().all() and torch.equal(y[::2], clean[::2])

    def test_a_row_of_zeros_is_the_bias(self, path, device):
        """Its mean and its variance are 0, and the word in which programs exchange the two must not be."""
        x, weight, bias = self.make((3, path), torch.float32, device)
        assert torch.equal(self.function(x * 0, weight, bias), bias.expand(3, path))

    @pytest.mark.parametrize("width", (24000, 40000))
    def test_rows_that_begin_at_odd_addresses(self, width, device):
        """They cannot be read as words of two numbers."""
        x, weight, bias = self.make((3, width), torch.bfloat16, device)
        odd = torch.empty(3 * width + 1, dtype=x.dtype, device=device)[1:].view_as(x).copy_(x)
        self.check((odd, weight, bias))

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_rows_whose_parts_cannot_wait_are_looked_at_twice(self, dtype, device):
        """As the widest are, and all above 32768 columns on an AMD GPU."""
        x, weight, bias = self.make((3, 40000), dtype, device)
        x[1] += 100
        with stand_ins.replaced(self.kernel, _parts=lambda *_: 0):
            assert "TILES" not in self.kernel._forward_launch(40000, 8 * x.element_size(), x.device)
            self.check((x, weight, bias))

    def test_scale_of_the_row_does_not_matter(self, path, device):
        x, weight, bias = self.make((SOME, path), torch.float32, device)
        assert torch.equal(self.function(x, weight, bias, 0.0), self.function(x * 2.0**20, weight, bias, 0.0))

    def test_eps(self, path, device):
        x, weight, bias = self.make((SOME, path), torch.float32, device)
        for eps in (1e-5, 1, 0.5):
            torch.testing.assert_close(self.function(x, weight, bias, eps), self.plain(x, weight, bias, eps))
        torch.testing.assert_close(self.function(x, weight, bias), self.plain(x, weight, bias, 1e-5))

    @pytest.mark.parametrize("x, weight, bias, error, message", NO_LAYER_NORM)
    def test_wrong_input_is_named(self, x, weight, bias, error, message, device):
        with pytest.raises(error, match=message):
            self.function(placed(x, device), placed(weight, device), placed(bias, device))


WIDE = ("exchange", "statistics", "forward-wide")
COPIES = {  # by use: what is deleted, row lengths whose results or gradients stay, and one whose gradients do not
    "short rows": (("tiles", "forward-row", *WIDE, "backward-wide"), (), (1024, 4096), 1025),
    "rows of one part": (WIDE, (), (5000, 9000), 40000),
    "no parts": (("exchange",), (), (1025,), 40000),
    "no row of any length": (("statistics", "forward-wide"), (), (1025,), 300000),
    "no row in tiles backward": (("backward-wide",), (9000,), (8192, 20000), 9000),
    "inference": (("backward", "backward-wide", "sums"), (100, 5000), (), 100),
}


@pytest.mark.parametrize("deleted, results, gradients, fails", COPIES.values(), ids=COPIES)
def test_what_a_copy_does_not_need_can_be_deleted(deleted, results, gradients, fails, device, tmp_path):
    """As the file's docstring and the page say."""
    text = Path(TestLayerNorm.kernel.__file__).read_text()
    for name in deleted:
        text, count = re.subn(rf"# --8<-- \[start:{name}\]\n.*?\[end:{name}\]\n", "", text, flags=re.DOTALL)
        assert count == 1, name
    name = f"part_{'_'.join(deleted)}".replace("-", "_")  # operators have names, and stay
    (tmp_path / f"{name}.py").write_text(text)
    spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
    part = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(part)
    whole = TestLayerNorm()

    def step(kernel, columns):
        return whole.run(kernel.layer_norm, whole.make((2, columns), torch.bfloat16, device))

    for columns in results:
        given = whole.make((2, columns), torch.bfloat16, device)
        assert torch.equal(part.layer_norm(*given), whole.kernel.layer_norm(*given)), columns
    for columns in gradients:
        whole.assert_equal(step(part, columns), step(whole.kernel, columns))
    with pytest.raises(Exception, match="is not defined"):  # Triton's compiler and interpreter wrap the NameError
        step(part, fails)
