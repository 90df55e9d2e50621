"""kernels/fp8_matmul.py: the product of the quantised operands, forward and both backward ones.

A reference quantises with PyTorch, to the bit as the kernels do, and multiplies in fp64. So a bound of fp32 or fp16
judges the kernels, and what fp8 costs does not hide their faults.
"""

import pytest
import torch
import torch.nn.functional as F

from tests.benchmarks import stand_ins
from tests.kernels.compiled import LOAD, SWEPT, MachineCode
from tests.kernels.conftest import load
from tests.kernels.promises import DTYPES, GPU, Promises, needs_gpu, placed, randn, strided
from tests.kernels.promises.launches import Launcher

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
INF, NAN = float("inf"), float("nan")
COLUMNS = 24  # of the output; fp16 rows of 48 bytes, which a descriptor can store
X, W = torch.ones(2, 32), torch.ones(4, 32)
Q, ONES = torch.ones(2, 32).to(E4M3), torch.ones(2)
# Of the largest result: what a Hopper GPU loses in a sum of 128 products. Each instruction cuts 32 of them, and the sum
# so far, off at 2^-13 of the largest.
SHARE = 2.0**-10
MACHINE_CODE = MachineCode(
    known=(
        ("_matmul_kernel", "c = tl.dot(a, b.T, c", r"QGMMA|UTC\w*MMA", "v_mfma"),
        ("_matmul_kernel", "a = a_desc.load(", r"UTMALDG", "load"),
        ("_rows_kernel", "x = tl.load(x_ptr + cols, mask=cols < K", *LOAD),
    ),
    spills={("_matmul_kernel", "sm_100"): (56, SWEPT)},
    small=("_matmul_kernel",),  # but for scales, it moves whole tiles by descriptors, which are no accesses of threads
    narrow=6,
    share=0.55,  # reductions are lines of a library of Triton
)
OWN = {  # definitions of the kernel file: see tests/pages/test_copies.py
    "_INTERPRETED _ONCE _checked _refuse_transforms": "a linear layer of two matrices, in fp8",
    "_flat _matmul_kernel _product _rows_kernel": "operands in fp8, with their scales",
}


def quantised(x, by, transposed, dtype):
    """(q, scales, q * scale in fp64) of x or x.T, as the kernel file's docstrings have them."""
    t = (x.T if transposed else x).float()
    rows, columns = t.shape
    largest = F.pad(t, (0, -columns % 128, 0, -rows % 128)).abs()
    if by == "row":
        largest = largest[:rows].amax(1, keepdim=True)
    else:
        largest = largest.unflatten(1, (-1, 128)).amax(2)
        largest = largest[:rows] if by == "strip" else largest.unflatten(0, (-1, 128)).amax(1)
    largest = largest.clamp_min(1e-30)
    most = torch.full_like(largest, torch.finfo(dtype).max)

    def spread(scale):
        down, across = {"row": (1, columns), "strip": (1, 128), "square": (128, 128)}[by]
        return scale.repeat_interleave(down, 0)[:rows].repeat_interleave(across, 1)[:, :columns]

    q = (t * spread(most / largest)).to(dtype)
    return q, largest / most, q.double() * spread(largest / most).double()


class Plain(torch.autograd.Function):
    """F.linear of what fp8 leaves of its operands, and its gradients alike; computed in fp64, rounded once."""

    @staticmethod
    def forward(ctx, x, weight, scales, gradients, dtype):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight)
        ctx.by, ctx.gradients = (("row", "row") if scales == "rows" else ("strip", "square")), gradients
        y = product(flat(x), ctx.by[0], False, E4M3, weight, ctx.by[1], False)
        return y.to(dtype).view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx, dy):
        if dy is None:
            return (None,) * 5
        x, weight = ctx.saved_tensors
        dy, rows = flat(dy), flat(x)
        dx = product(dy, ctx.by[0], False, ctx.gradients, weight, ctx.by[1], True)
        dweight = product(dy, ctx.by[0], True, ctx.gradients, rows, ctx.by[0], True)
        return dx.to(x.dtype).view(x.shape), dweight.to(weight.dtype), None, None, None


def flat(t):
    return t.reshape(t.shape[:-1].numel(), t.shape[-1])


def product(a, by_a, a_transposed, dtype, b, by_b, b_transposed):
    if a.numel() == 0 or b.numel() == 0:
        rows, columns = a.shape[1] if a_transposed else a.shape[0], b.shape[1] if b_transposed else b.shape[0]
        return torch.zeros(rows, columns, dtype=torch.float64, device=a.device)
    return quantised(a, by_a, a_transposed, dtype)[2] @ quantised(b, by_b, b_transposed, E4M3)[2].T


class Linear(Promises):
    kernel = load("fp8_matmul")
    name = "fp8_linear"
    inputs = ("x", "weight")
    GRID = (1, 2, 3, 127, 192, 1000, *((1128, 4097, 9000, 16384, 65537) if GPU else (2049,)))
    EDGES = (2049,)
    STRIDED = (40, 2500, 8200) if GPU else (40, 300, 2500)
    PATHS = (100, 260)
    LARGEST = 1e30
    LAUNCHES = 9
    OTHER_DTYPES = False
    NESTED = False
    scales, gradients = "rows", E4M3

    def plain(self, x, weight):
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        return Plain.apply(x, weight, self.scales, self.gradients, dtype)

    def function(self, x, weight):
        return self.kernel.fp8_linear(x, weight, self.scales, self.gradients, fast_accumulation=False)

    def make(self, shape, dtype, device, other=None, seed=0):
        return randn(shape, dtype, device, seed), randn((COLUMNS, shape[-1]), dtype, device, seed + 10)

    def check(self, arguments, grads=None):
        if not GPU:
            return super().check(arguments, grads)
        ours, exact = self.run(self.function, arguments, grads), self.run(self.plain, arguments, grads)
        for name, t in exact.items():
            assert torch.equal(ours[name].isfinite(), t.isfinite()) and ours[name].dtype == t.dtype, name
            apart = (ours[name].double() - t.double()).abs().nan_to_num(0, 0, 0).max()
            scale = t.double().nan_to_num(0, 0, 0).abs().max()
            assert apart <= (SHARE + 2 * torch.finfo(t.dtype).eps) * scale, (name, apart, scale)
        return ours

    def beyond_count(self, device):
        x, weight = self.make((1, 1), torch.bfloat16, device)
        for rows, columns in ((2**30 + 1, 1), (1, 2**30 + 1)):
            yield x.expand(rows, columns), weight.expand(COLUMNS, columns)

    def opchecks(self, device):
        kernel = self.kernel
        x, weight = self.make((3, 100), torch.bfloat16, device)
        dy = randn((3, COLUMNS), torch.bfloat16, device)
        for scales, fast, dtype in (("rows", True, torch.bfloat16), ("blocks", False, torch.float32)):
            yield kernel._forward_op, (x, weight, scales, E4M3, fast, dtype)
            for wanted in ((True, True), (True, False), (False, True)):
                yield kernel._backward_op, (dy, x, weight, scales, E5M2, fast, *wanted)
        yield kernel._forward_op, (x[:, :50], weight[:, 50:], "rows", E4M3, True, torch.float16)

    PRODUCTS = (  # columns, rows, how b is scaled, fast accumulation, terms: one for each entry of the table
        (8, 1, "row", True, 64), (4096, 16, "row", False, 64), (8192, 16, "square", True, 64),
        (8192, 8192, "strip", True, 8192), (8192, 8192, "square", True, 8192), (8192, 8192, "square", True, 4096),
        (4096, 4096, "row", True, 4096), (14336, 8192, "row", True, 4096),
    )  # fmt: skip

    def test_launches_fit_any_gpu(self):
        """The table is asked for a product."""
        for warp in (32, 64):
            with stand_ins.replaced(self.kernel, _device=lambda device, warp=warp: (132, warp)):
                for memory in (100 * 1024, 228 * 1024):
                    with stand_ins.replaced(self.kernel, _shared_memory=lambda device, memory=memory: memory):
                        for product in self.PRODUCTS:
                            options = self.kernel._forward_launch(product[0], 8, torch.device("cuda"), *product[1:])
                            stages = (options["BLOCK_M"] + options["BLOCK_N"]) * options["BLOCK_K"]
                            programs = max(options["PROGRAMS"], 1)
                            assert options["num_warps"] * warp in (128, 256)
                            assert stages * options["num_stages"] * programs < memory


class TestRows(Linear):
    """A scale for each row."""

    @pytest.mark.parametrize("strides", ("every other row", "every other column", "transposed", "one number expanded"))
    def test_any_strides_of_the_weight_and_of_the_incoming_gradient(self, strides, device):
        x = randn((5, 48), torch.float16, device)
        weight = strided(strides, (COLUMNS, 48), torch.float16, device)
        self.check((x, weight), (strided(strides, (5, COLUMNS), torch.float16, device),))

    def test_fast_accumulation_errs_by_the_tensor_cores_alone(self, device):
        """Where there are none, by nothing; on a GPU more than with sums in fp32."""
        x, weight = self.make((64, 1000), torch.float32, device)
        exact = self.plain(x, weight)
        fast = self.kernel.fp8_linear(x, weight)
        assert (fast - exact).abs().max() <= (4e-3 if GPU else 1e-6) * exact.abs().max()


class TestBlocks(Linear):
    """A scale for each 1 x 128, or 128 x 128; incoming gradients in e5m2, with more range and fewer digits."""

    scales, gradients = "blocks", E5M2
    PATHS = (260,)
    GRID = (1, 127, 1128 if GPU else 1000)


# what both ways to scale share is tested of one of them
SHARED = (
    "test_opcheck", "test_recorded_backward", "recorded", "compil", "nested", "copy", "default", "double_backward",
    "torch_func", "wrong_options", "counted", "amd", "share_compiled", "launch", "order", "batches", "checkpointing",
    "not_used", "optional", "frozen", "any_strides", "elements_apart",
)  # fmt: skip
for _name in dir(TestBlocks):
    if _name.startswith("test_") and any(word in _name for word in SHARED):
        setattr(TestBlocks, _name, None)


# ---- quantising -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", (E4M3, E5M2), ids=str)
@pytest.mark.parametrize("transposed", (False, True))
@pytest.mark.parametrize("by", ("row", "strip", "square"))
@pytest.mark.parametrize("shape", ((1, 1), (5, 100), (130, 257)), ids=str)
def test_quantised_to_the_bit_as_by_pytorch(shape, by, transposed, dtype, device):
    """fp16, whose few digits make ties likely."""
    x = randn(shape, torch.float16, device) * randn((shape[0], 1), torch.float32, device, 1).exp().half()
    q, scale = Linear.kernel._quantise(x, by, transposed, dtype)
    expected, expected_scale, _ = quantised(x, by, transposed, dtype)
    assert torch.equal(q.float(), expected.float())
    assert torch.equal(scale if by == "row" else scale.t(), expected_scale[:, 0] if by == "row" else expected_scale)


def test_operators_on_fp8(device):
    """But for the part of opcheck that compares tensors in fp8, which PyTorch cannot."""
    parts = "test_autograd_registration", "test_faketensor"
    x = randn((130, 100), torch.float32, device)
    for by, transposed in (("row", False), ("row", True), ("strip", True), ("square", False)):
        torch.library.opcheck(Linear.kernel._quantise_op, (x, by, transposed, E4M3), test_utils=parts)
        operands = (*Linear.kernel._quantise(x, "row" if by == "row" else "strip", transposed, E5M2),)
        operands = *operands, *Linear.kernel._quantise(x, by, transposed, E4M3)
        torch.library.opcheck(Linear.kernel._multiply_op, (*operands, by, True, torch.float16), test_utils=parts)


def test_long_rows_are_quantised_in_two_looks(device):
    x = randn((2, 20000), torch.float32, device)
    x[0, 19999] = 77.0
    q, scale = Linear.kernel.quantised(x)
    expected, expected_scale, _ = quantised(x, "row", False, E4M3)
    assert torch.equal(q.float(), expected.float()) and torch.equal(scale, expected_scale[:, 0])


@pytest.mark.parametrize("scales", ("rows", "blocks"))
def test_rows_of_zeros_tiny_ones_and_what_is_not_finite(scales, device):
    x = randn((6, 256), torch.float32, device)
    x[0], x[1, 3], x[2, 3] = 0, INF, NAN
    x[3] *= 1e-29 / x[3].abs().max()
    x[4] *= 1e-37
    q, scale = Linear.kernel.quantised(x, scales)
    assert not q[0].float().any() and scale.isnan().sum() == 0
    assert q[1].isnan().nonzero().tolist() == q[2].isnan().nonzero().tolist() == [[3]]
    assert q[3].float().abs().max() == 448, "1e-29 has all its digits"
    assert not q[4].float().any(), "below 1e-36 all is zero"
    y = Linear.kernel.fp8_linear(x, randn((8, 256), torch.float32, device), scales)
    assert y.isnan().all(1).tolist() == [False, True, True, False, False, False] and not y[0].any()


def test_a_large_scale_meets_a_small_one(device):
    """One after the other, the scales would leave the range of fp32."""
    x, weight = randn((3, 64), torch.float32, device) * 1e36, randn((8, 64), torch.float32, device) * 1e-30
    for scales in ("rows", "blocks"):
        expected = Plain.apply(x, weight, scales, E4M3, torch.float64)
        y = Linear.kernel.fp8_linear(x, weight, scales)
        torch.testing.assert_close(y.double(), expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())


# ---- one product ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("way", ("rows", "strips", "squares"))
def test_product_of_quantised_matrices(way, dtype, device):
    """Operands that lie as they like, tiles that hang over every edge, and rows that no descriptor can store."""
    kernel, scales = Linear.kernel, "rows" if way == "rows" else "blocks"
    a, b = randn((130, 300), torch.float32, device), randn((259, 300), torch.float32, device, 1)
    (qa, sa), (qb, sb) = kernel.quantised(a, scales), kernel.quantised(b, scales, way == "squares", E5M2)
    by = "row" if way == "rows" else "strip", way.removesuffix("s")
    exact = quantised(a, by[0], False, E4M3)[2] @ quantised(b, by[1], False, E5M2)[2].T
    for fast in (False, True):
        for left in (qa, qa.t().contiguous().t()):
            c = kernel.fp8_matmul(left, sa, qb, sb, dtype, fast)
            share = (4e-3 if fast else SHARE) if GPU else 1e-6
            assert c.dtype == dtype and c.shape == (130, 259)
            assert (c.double() - exact).abs().max() <= (share + torch.finfo(dtype).eps) * exact.abs().max()


def test_tiles_in_groups_are_each_computed_once(device):
    """More rows of tiles than a group has, of both kinds of tiles."""
    a, b = randn((17 * 128 + 1, 16), torch.float32, device), randn((600, 16), torch.float32, device, 1)
    (qa, sa), (qb, sb) = Linear.kernel.quantised(a), Linear.kernel.quantised(b)
    exact = quantised(a, "row", False, E4M3)[2] @ quantised(b, "row", False, E4M3)[2].T
    c = Linear.kernel.fp8_matmul(qa, sa, qb, sb, torch.float32, False)
    torch.testing.assert_close(c.double(), exact, rtol=1e-3, atol=1e-3)


def test_what_is_not_asked_for_is_not_computed(device):
    """Each product takes one launch, each operand its quantising."""
    x, weight = Linear().make((5, 48), torch.float16, device)
    for of_x, of_weight, products in ((True, True, 3), (True, False, 2), (False, True, 2), (False, False, 1)):
        launched = []
        matmul = Launcher(Linear.kernel._matmul_kernel, lambda: launched.append(1))  # noqa: B023
        with stand_ins.replaced(Linear.kernel, _matmul_kernel=matmul):
            y = Linear.kernel.fp8_linear(
                x.detach().requires_grad_(of_x), weight.detach().requires_grad_(of_weight), "blocks"
            )
            if y.requires_grad:
                y.sum().backward()
        assert len(launched) == products


@needs_gpu
def test_memory_stays_flat_over_many_shapes(device):
    def step(rows):
        x, weight = Linear().make((rows, 256), torch.bfloat16, device)
        Linear.kernel.fp8_linear(x.requires_grad_(), weight.requires_grad_()).sum().backward()

    step(64)
    before = torch.cuda.memory_allocated()
    for rows in range(65, 1065):
        step(rows)
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize(
    "x, weight, options, error, message",
    (
        (X.int(), W, {}, TypeError, "x: expected an fp32, fp16 or bf16 tensor, got torch.int32"),
        (X, W.to(E4M3), {}, TypeError, "weight: expected an fp32, fp16 or bf16 tensor, got torch.float8_e4m3fn"),
        (X, W.half(), {}, TypeError, "weight: expected torch.float32, as x has, got torch.float16"),
        (X, W.T, {}, ValueError, r"weight: expected shape \[N, 32\], got \[32, 4\]"),
        (X, W[0], {}, ValueError, r"weight: expected shape \[N, 32\], got \[32\]"),
        (X[0, 0], W, {}, ValueError, "x: expected at least one dimension, got none"),
        (X, W.to("meta"), {}, ValueError, "weight: expected on .*, where x is, got meta"),
        (X, W, {"scales": "tensor"}, ValueError, "scales: expected 'rows' or 'blocks', got 'tensor'"),
        (X, W, {"gradients": torch.int8}, ValueError, "gradients: expected .*e4m3fn or .*e5m2, got torch.int8"),
        (X, W, {"fast_accumulation": 1}, TypeError, "fast_accumulation: expected True or False, got <class 'int'>"),
        (X, W, {"dtype": torch.float64}, ValueError, "dtype: expected .*, got torch.float64"),
    ),
)
def test_wrong_input_is_named(x, weight, options, error, message, device):
    with pytest.raises(error, match=f"^{message}$"):
        Linear.kernel.fp8_linear(placed(x, device), placed(weight, device), **options)


@pytest.mark.parametrize(
    "arguments, error, message",
    (
        ((X, ONES, Q, ONES), TypeError, "a: expected a tensor in .*e4m3fn or .*e5m2, got torch.float32"),
        ((Q, ONES, Q[:, :16], ONES), ValueError, r"b: expected two dimensions, .* got \[2, 16\]"),
        ((Q, ONES.half(), Q, ONES), TypeError, "a_scale: expected an fp32 tensor, got torch.float16"),
        ((Q, ONES, Q, ONES[:1]), ValueError, r"b_scale: expected shape \[2\], got \[1\]"),
        ((Q, ONES[:, None], Q, ONES), ValueError, r"b_scale: expected shape \[2, 1\] or \[1, 1\], got \[2\]"),
        ((Q, ONES, Q, ONES, torch.float64), ValueError, "dtype: expected .*, got torch.float64"),
    ),
)
def test_wrong_operands_are_named(arguments, error, message, device):
    with pytest.raises(error, match=f"^{message}$"):
        Linear.kernel.fp8_matmul(*(placed(argument, device) for argument in arguments))


@pytest.mark.parametrize(
    "x, options, error, message",
    (
        (X[0], {}, ValueError, "x: expected two dimensions, got 1"),
        (X.double(), {}, TypeError, "x: expected an fp32, fp16 or bf16 tensor, got torch.float64"),
        (X, {"squares": True}, ValueError, "squares: expected False with scales='rows', got True"),
        (X, {"dtype": torch.float16}, ValueError, "dtype: expected .*e4m3fn or .*e5m2, got torch.float16"),
    ),
)
def test_what_cannot_be_quantised_is_named(x, options, error, message, device):
    with pytest.raises(error, match=f"^{message}$"):
        Linear.kernel.quantised(placed(x, device), **options)


def test_devices_without_fp8_are_refused(monkeypatch):
    """Asked for once for each device."""
    usable = Linear.kernel._usable.__wrapped__
    monkeypatch.setattr(Linear.kernel, "_INTERPRETED", False)
    with pytest.raises(ValueError, match=r"^x: expected a GPU tensor, got one on the CPU [^\n]*$"):
        usable("x", torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    for capability, refused in (((8, 0), True), ((8, 6), True), ((8, 9), False), ((9, 0), False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: capability)
        if refused:
            with pytest.raises(ValueError, match=r"^x: expected on a GPU of NVIDIA's with fp8 .*, got on NVIDIA A100$"):
                usable("x", torch.device("cuda"))
        else:
            usable("x", torch.device("cuda"))
