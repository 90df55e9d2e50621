"""kernels/layer_norm_gelu.py: the same function as F.gelu of F.layer_norm, wherever and however it is called."""

import itertools
import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from tests.benchmarks import stand_ins
from tests.kernels import compiled
from tests.kernels.compiled import AHEAD, POWER, STORE, SWEPT, MachineCode
from tests.kernels.conftest import load
from tests.kernels.promises import DTYPES, GPU, NO_LAYER_NORM, SOME, Promises, placed, randn

EPS = 1e-5
APPROXIMATE = ("none", "tanh")
kernel = load("layer_norm_gelu")
MACHINE_CODE = MachineCode(
    known=(
        ("_forward_kernel", "tail = tl.exp2((tail * a", *POWER),
        ("_forward_kernel", "_gelu(z, TANH, FINE), mask=inside)", *STORE),
        ("_backward_kernel", "dy = tl.load(dy_ptr + rows", *AHEAD),
    ),
    spills={
        ("_backward_kernel", "sm_100"): (8, SWEPT),
    },
    narrow=8,
    small=("_sum_shares_kernel",),
    share=0.89,  # the compiler moves a row's own work out of _means_kernel's loop, and forgets whose it was
)
OWN = {  # definitions of the kernel file: see tests/pages/test_copies.py
    "_add _combine _means_kernel _means_launch _options _sum_launch": "the row is a warp's, and GELU follows",
    "_load _sum_shares_kernel": "layer_norm",
}


class TestLayerNormGELU(Promises):
    kernel = kernel
    name = "layer_norm_gelu"
    inputs = ("x", "weight", "bias")
    PATHS = (100, 4100, 9000, 40000)
    MOST_COLUMNS = 2**26
    LAUNCHES = 3
    OPTIONAL = ("weight", "bias")
    SUMS = ("_sum_shares_kernel",)

    def plain(self, x, weight, bias, eps=EPS, approximate="none"):
        """The two ops; where F.layer_norm refuses the mix of dtypes, both in fp32, and rounded to that of x."""
        autocast = x.is_cuda and torch.is_autocast_enabled("cuda")  # on a CPU, to other ops
        given = [t for t in (x, weight, bias) if t is not None]
        if autocast or len({t.dtype for t in given}) == 1:
            return F.gelu(F.layer_norm(x, x.shape[-1:], weight, bias, eps), approximate=approximate)
        x_, weight, bias = (t if t is None else t.float() for t in (x, weight, bias))
        return self.plain(x_, weight, bias, eps, approximate).to(x.dtype)

    def make(self, shape, dtype, device, other=None, seed=0):
        weight = randn(shape[-1], other or dtype, device, seed + 10, offset=1)
        return randn(shape, dtype, device, seed), weight, randn(shape[-1], other or dtype, device, seed + 20)

    def summands(self, arguments, grads, reference):
        """Of the formulas with x_hat = x * rstd - mean * rstd; what that loses where the mean is far from zero in units
        of the spread reaches every gradient through the slope of the GELU, which is 1.13 at most and changes by 0.8."""
        x, weight, bias, dy = *arguments, *grads
        rstd = (x.var(-1, correction=0, keepdim=True) + EPS).rsqrt()
        far, offset = (x * rstd).abs(), (x.mean(-1, keepdim=True) * rstd).abs()
        x_hat = (x - x.mean(-1, keepdim=True)) * rstd
        dz = dy.abs() * (1.13 + 0.8 * offset * weight.abs())
        g = dz * weight.abs()
        mean = (g * x_hat).mean(-1, keepdim=True).abs()
        largest = {name: t.abs().max().item() for name, t in reference.items()}
        return {
            "output": (far * weight.abs() + bias.abs()).max().item(),
            "x.grad": (torch.maximum(g, torch.maximum(far * mean, g.mean(-1, keepdim=True))) * rstd).max().item(),
            # a partial sum is a summand too; the last one is the result
            "weight.grad": max((dz * far).max().item(), largest.get("weight.grad", 0.0)),
            "bias.grad": max(dz.max().item(), largest.get("bias.grad", 0.0)),
        }

    def opchecks(self, device):
        x, weight, bias = self.make((3, 100), torch.bfloat16, device)
        dy = randn((3, 100), torch.bfloat16, device)
        forward, backward = self.kernel._forward_op, self.kernel._backward_op
        stats = forward(x, weight, bias, EPS, False, x.dtype, True)[1]
        return (
            (forward, (x, weight, bias, EPS, False, x.dtype, False)),
            (forward, (x[:, :50], weight[:50], bias[:50], EPS, True, torch.float32, True)),
            (forward, (x, weight, None, EPS, False, x.dtype, True)),
            (backward, (dy, x, weight, bias, stats, False, True)),
            (backward, (dy, x, weight, bias, stats, True, False)),
            (backward, (dy, x, None, bias, stats, False, True)),
        )

    def test_launches_fit_any_gpu(self):
        for room in (64 * 1024, 100 * 1024, 164 * 1024, 228 * 1024):
            with stand_ins.replaced(
                self.kernel, _device=lambda device: (132, 32), _shared_memory=lambda device, room=room: room
            ):
                super().test_launches_fit_any_gpu()
                for columns, bits in itertools.product((100, 1024, 4096, 8192, 9000), (16, 32)):
                    options = self.kernel._backward_launch(columns, bits, torch.device("cuda"))
                    staged = options["ROWS"] * options["BLOCK"] * 2 * bits // 8 * (options["STAGES"] - 1)
                    assert options["STAGES"] > 1 and staged * options["PROGRAMS"] < room, (columns, bits)

    def test_strided_weight_and_bias(self, device):
        x, _, _ = self.make((3, 40), torch.float32, device)
        parameters = randn((2, 80), torch.float32, device)[:, ::2]
        self.check((x, *parameters))

    @pytest.mark.parametrize("dtype", (torch.float32, torch.float16), ids=str)
    def test_rows_far_from_zero(self, path, dtype, device):
        """Where the mean square less the squared mean has no digit left."""
        x, weight, bias = self.make((SOME, path), torch.float32, device)
        x = (x + (1e4 if dtype == torch.float32 else 1e3)).to(dtype)
        self.check((x, weight.to(dtype), bias.to(dtype)))
        far = self.function(x, torch.ones_like(weight), torch.full_like(bias, 20.0), 0.0)  # gelu(20 + z) = 20 + z
        spread = far.float().std(-1, correction=0)
        torch.testing.assert_close(
            spread, torch.ones_like(spread), rtol=1e-3 if dtype == torch.float32 else 1e-2, atol=0
        )

    def test_one_outlier_far_from_the_others(self, path, device):
        """In the first tile, in the last, and in the tile that hangs over the row's end. Two looks count from a lane's
        first number; if that is the outlier, as many roundings as the lane has numbers stay in the variance."""
        for at in (0, path // 2, path - 1):
            x, weight, bias = self.make((2, path), torch.float32, device)
            x[:, at] = 1e4
            if at == 0 and path > 32768:
                rstd = self.kernel._forward_op(x, weight, bias, EPS, False, x.dtype, True)[1][1].double()
                exact = (x.double().var(-1, correction=0) + EPS).rsqrt()
                assert (rstd / exact - 1).abs().max() < (path // 4096 + 4) * torch.finfo(torch.float32).eps
            else:
                self.check((x, weight, bias))

    def test_mean_and_rstd_are_those_of_the_row(self, path, device):
        x, weight, bias = self.make((3, path), torch.float32, device)
        mean, rstd = self.kernel._forward_op(x, weight, bias, EPS, False, x.dtype, True)[1]
        exact = x.double()
        torch.testing.assert_close(mean.double(), exact.mean(-1), rtol=0, atol=1e-6)
        torch.testing.assert_close(rstd.double(), (exact.var(-1, correction=0) + EPS).rsqrt(), rtol=1e-6, atol=0)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("columns_", (1, 2, 768, 3000, 4096, 9000, 40000, *(24000, 131072) * GPU))
    def test_rows_of_equal_numbers_are_gelu_of_the_bias(self, columns_, dtype, device):
        """To the bit: as rows of zeros, whatever the number. Every gradient, too."""
        values = [v for v in (3.3, 1000.1, -12345.67, 65504.0, -1e6, 1e30) if abs(v) <= torch.finfo(dtype).max]
        x, weight, bias = self.make((3, columns_), dtype, device)
        zeros = self.run(self.function, (torch.zeros_like(x), weight, bias))
        torch.testing.assert_close(zeros["output"], F.gelu(bias).expand_as(x))
        for three in (values[:3], values[-3:]):
            rows = torch.tensor(three, device=device).to(dtype)[:, None].expand_as(x)
            self.assert_equal(self.run(self.function, (rows, weight, bias)), zeros)

    def test_a_negative_rstd_stands_for_a_row_of_equal_numbers(self, path, device):
        """Such a row's numbers do not matter to the backward. On a GPU x * rstd - mean * rstd is rounded once less than
        in the interpreter, and would not be 0 there."""
        x, weight, bias = self.make((3, path), torch.float32, device)
        dy, equal = randn((3, path), torch.float32, device, 1), x[:, :1].expand_as(x)
        forward, backward = self.kernel._forward_op, self.kernel._backward_op
        assert (forward(x, weight, bias, EPS, False, x.dtype, True)[1][1] > 0).all()
        stats = forward(equal, weight, bias, EPS, False, x.dtype, True)[1]
        assert (stats[1] < 0).all()
        for parameters in (True, False):
            found = [backward(dy, t, weight, bias, stats, False, parameters) for t in (equal, x)]
            assert all(map(torch.equal, *found)), parameters

    @pytest.mark.filterwarnings("ignore:.* encountered in")  # the interpreter's: meant
    @pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
    def test_a_variance_beyond_the_range_of_fp32_leaves_the_bias(self, path, dtype, device):
        """In every row. PyTorch's is NaN in some, which are not compared: on a CPU, and on an H200 from 1e25 on in rows
        of 100 columns, where from 1024 columns on it is the bias, too."""
        x, weight, bias = self.make((4, path), dtype, device)
        x = x.clamp(-1, 1) * torch.tensor([[1e19], [1e25], [1e30], [1e38]], dtype=dtype, device=device)
        ours, plain = (self.run(function, (x, weight, bias)) for function in (self.function, self.plain))
        zeros = self.run(self.function, (torch.zeros_like(x), weight, bias))
        self.assert_equal(ours, zeros | {"x.grad": torch.zeros_like(x)})
        same = ~plain["output"].isnan()
        torch.testing.assert_close(ours["output"][same], plain["output"][same])

    @pytest.mark.filterwarnings("ignore:.* encountered in")  # the interpreter's: meant
    @pytest.mark.parametrize("eps", (0.0, -100.0))
    def test_rows_that_no_rstd_exists_for_are_nan(self, path, eps, device):
        """Output and gradients, as PyTorch's: equal numbers with eps = 0, and a variance below a negative eps."""
        x, weight, bias = self.make((3, path), torch.float32, device)
        x = torch.ones_like(x) if eps == 0 else x
        for function in (self.function, self.plain):
            found = self.run(function, (x, weight, bias, eps))
            assert all(t.isnan().all() for t in found.values()), found

    def test_eps(self, path, device):
        x, weight, bias = self.make((SOME, path), torch.float32, device)
        for eps in (1e-5, 1, 0.5):
            torch.testing.assert_close(self.function(x, weight, bias, eps), self.plain(x, weight, bias, eps))
        torch.testing.assert_close(self.function(x, weight, bias), self.plain(x, weight, bias, 1e-5))

    @pytest.mark.filterwarnings("ignore:.* encountered in")  # the interpreter's: meant
    @pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
    def test_far_out_on_the_gelu(self, dtype, device):
        """Beyond the range of exp(-z^2 / 2), of exp(-2u), of z^2, and at infinity, where -inf * 0 is NaN in PyTorch."""
        inf = float("inf")
        z = torch.tensor((9.0, 30.0, 1e4, 1e15, 1e30, inf, -9.0, -30.0, -1e4, -1e15, -1e30, -inf))
        expected = torch.where(z > 0, z, 0.0).masked_fill(z == -inf, torch.nan).to(device, dtype)
        x, bias = torch.ones(1, z.numel(), device=device, dtype=dtype), z.to(device, dtype)
        for approximate in APPROXIMATE:
            y = self.function(x, torch.ones_like(bias), bias, EPS, approximate)
            torch.testing.assert_close(y[0], expected, equal_nan=True)
        finite = bias.abs() < 1e18  # beyond, the slope of "tanh" is inf * 0, in PyTorch too
        ours = self.run(self.function, (x[:, finite], torch.ones_like(bias[finite]), bias[finite]))
        dy = self.incoming((ours["output"],))[0][0]
        torch.testing.assert_close(ours["bias.grad"], torch.where(bias[finite] > 0, dy, 0.0))

    @pytest.mark.parametrize("x, weight, bias, error, message", NO_LAYER_NORM)
    def test_wrong_input_is_named(self, x, weight, bias, error, message, device):
        with pytest.raises(error, match=message):
            self.function(placed(x, device), placed(weight, device), placed(bias, device))

    def test_wrong_input_approximate_is_named(self, device):
        x, weight, bias = self.make((2, 8), torch.float32, device)
        with pytest.raises(ValueError, match='approximate: expected "none" or "tanh", got \'erf\''):
            self.function(x, weight, bias, EPS, "erf")


class Tanh(TestLayerNormGELU):
    """The same promises of the other GELU; what does not depend on the GELU is not tested again."""

    __test__ = False
    GRID = (1, 3, 127, 1128, 4097, 9000, 32000, 66000)  # the last ends in a tile with enough columns to differ by GELU
    EDGES = (66000,)

    def function(self, x, weight, bias, eps=EPS, approximate="tanh"):
        return self.kernel.layer_norm_gelu(x, weight, bias, eps, approximate)

    def plain(self, x, weight, bias, eps=EPS, approximate="tanh"):
        return super().plain(x, weight, bias, eps, approximate)


class TestTanh:
    @pytest.mark.parametrize("columns, dtype", Tanh.held(), ids=str)
    def test_error_within_the_bound(self, columns, dtype, device):
        Tanh().test_error_within_the_bound(columns, dtype, device)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("path", TestLayerNormGELU.PATHS[:-1])
    def test_extreme_values(self, path, dtype, device):
        Tanh().test_extreme_values(path, dtype, device)

    @pytest.mark.parametrize("path", TestLayerNormGELU.PATHS[:-1])
    def test_bitwise_the_same_in_every_run_and_with_a_backward_to_come(self, path, device):
        Tanh().test_bitwise_the_same_in_every_run(path, device)
        Tanh().test_gradient_only_where_it_is_asked_for(path, device)

    def test_compiles_as_one_graph(self, device):
        Tanh().test_compiles_as_one_graph(True, device)

    def test_machine_code(self):
        """No page shows it: tests/pages/test_compiled.py holds the other to more."""
        for facts in compiled.ahead(Tanh, "sm_90", (4096, 16384)):
            assert facts["spilled"] == 0 and "128" in facts["loads"], facts


@pytest.mark.parametrize("target", compiled.OTHERS)
def test_nothing_spills_with_less_shared_memory(target):
    """Nor in odd rows, whose loads cannot go past the registers."""
    for facts in compiled.ahead(TestLayerNormGELU, target, (3073, 4096)):
        assert facts["spilled"] == 0, facts


@triton.jit
def _gelu_kernel(z_ptr, y_ptr, slope_ptr, TANH: tl.constexpr, FINE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(z_ptr + at)
    tl.store(y_ptr + at, kernel._gelu(z, TANH, FINE))
    tl.store(slope_ptr + at, kernel._slope(z, TANH, FINE))


@pytest.mark.parametrize("fine", (False, True))
@pytest.mark.parametrize("approximate", APPROXIMATE)
def test_gelu_and_its_slope_at_every_z(approximate, fine, device):
    """The GELU alone, before any rounding to 16 bits: relative to itself, so that its tail counts, too."""
    z = torch.linspace(-9, 9, 2**17, device=device)
    y, slope = torch.empty_like(z), torch.empty_like(z)
    _gelu_kernel[(z.numel() // 4096,)](z, y, slope, approximate == "tanh", fine, BLOCK=4096)
    exact = z.double().requires_grad_()
    if approximate == "none":
        reference = exact * torch.special.erfc(-exact / 2**0.5) / 2
    else:
        reference = exact * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (exact + 0.044715 * exact**3))
    slope_reference = torch.autograd.grad(reference.sum(), exact)[0]
    error, slope_error = (y - reference.detach()).abs(), (slope - slope_reference).abs()
    relative = error / reference.detach().abs()
    if approximate == "none" and fine:  # 1 + erf cancels, as in PyTorch
        assert (error / z.abs()).max() < 3e-7 and slope_error.max() < 6e-7
    elif approximate == "none":
        assert relative[z > -5.6].max() < 5e-5 and error[z <= -5.6].max() < 1e-8 and slope_error.max() < 2e-5
    else:
        assert relative.max() < 1e-5 and slope_error.max() < 1e-6


class Figure(TestLayerNormGELU):
    """What the figure of its page compares, in its order: bf16 with erf, with the logarithm and by tanh; fp32."""

    def launches(self, columns, target):
        found = []
        for dtype, approximate, erf in (
            (torch.bfloat16, "none", {"ERF": True}),
            (torch.bfloat16, "none", {}),
            (torch.bfloat16, "tanh", {}),
            (torch.float32, "none", {}),
        ):
            x, weight, bias = self.make((160, columns), dtype, torch.device("cpu"))
            call = partial(self.kernel.layer_norm_gelu, x, weight, bias, approximate=approximate)
            (launch,) = compiled.recorded(self.kernel, call, target)
            found.append(compiled.Launch(launch.kernel, launch.arguments, {**launch.keywords, **erf}))
        return found


def test_the_figure_has_the_instructions_of_the_machine_code():
    figure = (compiled.ROOT / "docs/pages/kernels/figures/slots.svg").read_text()
    drawn = [int(number) for number in re.findall(r">(\d+)</text>", figure)]
    options = TestLayerNormGELU.kernel._forward_launch(4096, 16, torch.device("cpu"))
    elements = options["ROWS"] * options["TILES"] * options["BLOCK"] / (32 * options["num_warps"])
    counted = [facts["instructions"] / elements for facts in compiled.ahead(Figure, "sm_90", (4096,))]
    assert drawn == pytest.approx(counted, abs=1)
