"""kernels/matmul.py: the same function as f(a @ b + bias) + residual, of any shape and strides."""

import dataclasses
import itertools
import tracemalloc

import pytest
import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.benchmarks import stand_ins
from tests.kernels import compiled
from tests.kernels.compiled import LOAD, POWER, STORE, MachineCode
from tests.kernels.conftest import load
from tests.kernels.promises import DTYPES, GPU, Promises, needs_gpu, placed, randn

kernel = load("matmul")
PRODUCTS = r"HG?MMA|UTC\w*MMA", "v_mfma"
MACHINE_CODE = MachineCode(
    known=(
        ("_matmul_kernel", "total = tl.dot(", *PRODUCTS),
        ("_matmul_kernel", "bell = tl.exp2(", *POWER),
        ("_split_kernel", "total = tl.dot(", *PRODUCTS),
        ("_join_kernel", "total += tl.load(part_ptr", *LOAD),
        ("_slope_kernel", "tl.store(dz_ptr", *STORE),
    ),
    narrow=1,  # what is added up in fp32 is stored in 16 bits
    small=("_matmul_kernel", "_split_kernel"),  # their operands come by descriptors
    share=0.85,
)
OWN = {  # definitions of the kernel file: see tests/pages/test_copies.py
    "_activate": "ReLU squared, and tanh in one instruction",
    "_checked _shared_memory": "matrices, and a CPU that stands for a GPU",
    "_INTERPRETED": "rope",
    "_finish _slope _store _sum _tile": "words of a matmul, for tiles of matrices",
}
ACTIVATIONS = {
    None: lambda z: z,
    "gelu": F.gelu,
    "gelu-tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
    "relu2": lambda z: F.relu(z).square(),
}


class Linear(Promises):
    """Of rows x as a Linear layer has them: the weight is the transpose of b."""

    kernel = kernel
    name = "matmul"
    inputs = ("x", "weight", "bias")
    OPTIONAL = ("bias",)
    SUMS = ("_sum_shares_kernel",)
    OTHER_DTYPES = False
    NESTED = False
    GRID = (1, 2, 3, 127, 192, 1000, 2049)
    EDGES = GRID
    ROWS = 37
    STRIDED = (40, 2500, 8200) if GPU else (40, 300, 2500)
    PATHS = (100, 2048)
    LARGEST = 1e2
    N = 24
    activation: str | None = "gelu"

    def function(self, x, weight, bias=None):
        return self.kernel.matmul(
            x, weight.t() if weight.layout == torch.strided else weight, bias, None, self.activation
        )

    def public(self, arguments):
        x, weight, *_ = arguments
        return x, weight.t()

    def plain(self, x, weight, bias=None):
        return ACTIVATIONS[self.activation](F.linear(x, weight, bias))

    def make(self, shape, dtype, device, other=None, seed=0):
        columns = shape[-1]
        weight = randn((self.N, columns), torch.float32, device, seed + 10) / max(1, columns) ** 0.5
        return randn(shape, dtype, device, seed), weight.to(dtype), randn((self.N,), dtype, device, seed + 20)

    def summands(self, arguments, grads, reference):
        """Each product, and each partial sum."""
        x, weight, *_ = arguments
        dz = grads[0].abs().max().item() * 1.13
        return {
            "output": max(1.0, reference["output"].abs().max().item()),
            "x.grad": max(reference["x.grad"].abs().max().item(), dz * weight.abs().max().item()),
            "weight.grad": max(reference["weight.grad"].abs().max().item(), dz * x.abs().max().item()),
            "bias.grad": max(dz, reference["bias.grad"].abs().max().item() if "bias.grad" in reference else 0.0),
        }

    def beyond_count(self, device):
        one = torch.ones(1, 1, dtype=torch.bfloat16, device=device)
        for rows, columns, inner in ((2**30 + 1, 1, 1), (1, 2**30 + 1, 1), (1, 1, 2**30 + 1)):
            yield one.expand(rows, inner), one.expand(columns, inner), one[0].expand(columns)

    def test_more_rows_or_columns_than_are_counted_are_refused(self, device):
        super().test_more_rows_or_columns_than_are_counted_are_refused(device)
        for x, weight, _ in self.beyond_count(device):
            with pytest.raises(ValueError, match=r"expected at most .*, got .*1073741825"):
                kernel.matmul(x, weight.t())

    def opchecks(self, device):
        x, weight, bias = self.make((3, 100), torch.bfloat16, device)
        residual, dy = (randn((3, self.N), torch.bfloat16, device, seed) for seed in (1, 2))
        forward, backward = self.kernel._forward_op, self.kernel._backward_op
        inference = getattr(torch.ops, self.kernel._namespace).matmul_inference.default
        yield inference, (x, weight.t(), bias, residual, "gelu", False)
        for activation in ("gelu", None):
            z = dy if activation else dy.new_empty(0)
            yield forward, (x, weight.t(), bias, residual, activation, False, True)
            yield backward, (dy, x, weight.t(), z, activation, False, [True, True, True])
        yield forward, (x, weight.t().contiguous(), None, None, None, False, False)
        yield backward, (dy, x, weight.t().contiguous(), dy.new_empty(0), None, False, [False, True, False])


class TestMatmul(Linear):
    def test_nan_and_inf_as_pytorch_and_in_their_row(self, path, device, monkeypatch):
        """As PyTorch in float64: its GELU of bf16 on a CPU makes no NaN of -inf."""
        exact = self.plain
        monkeypatch.setattr(self, "plain", lambda *inputs: exact(*(t.double() for t in inputs)), raising=False)
        super().test_nan_and_inf_as_pytorch_and_in_their_row(path, device)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_extreme_values(self, path, dtype, device, monkeypatch):
        """Of the matmul: the slope of a GELU at a large sum hangs on the last bits of it."""
        monkeypatch.setattr(self, "activation", None, raising=False)
        super().test_extreme_values(path, dtype, device)

    @pytest.mark.parametrize("shape", ((0, 8), (2, 0, 8), (3, 0)), ids=str)
    def test_empty_input(self, shape, device, monkeypatch):
        """Without a GELU: where there is nothing to add up, the bias is left. Its gradient adds rows in any order."""
        monkeypatch.setattr(self, "activation", None, raising=False)
        arguments = self.make(shape, torch.float32, device)
        ours, plain = self.run(self.function, arguments), self.run(self.plain, arguments)
        torch.testing.assert_close(ours.pop("bias.grad"), plain.pop("bias.grad"), rtol=1e-6, atol=1e-6)
        self.assert_equal(ours, plain)

    @needs_gpu
    @pytest.mark.parametrize("wide", (1000, 131072))
    def test_more_than_2_to_the_31_elements(self, wide, device):
        """As few rows get it, but for the order of sums: it hangs on the tile, and that on the number of rows."""
        rows = 2**31 // wide + 3
        x, weight, bias = self.make((7, wide), torch.bfloat16, device)
        few = self.run(self.function, (x, weight, bias))
        few = self.run(self.function, (x, weight, bias), (dy := few["output"],))
        repeated = (t.repeat(rows // 7 + 1, 1)[:rows] for t in (x, dy))
        ours = self.run(self.function, (next(repeated), weight, bias), (next(repeated),))
        for name in ("output", "x.grad"):
            size = few[name].abs().max().item()
            torch.testing.assert_close(ours[name][:7], few[name], rtol=2**-7, atol=2**-7 * size)
            last = few[name].roll(-((rows - 7) % 7), 0)
            torch.testing.assert_close(ours[name][rows - 7 :], last, rtol=2**-7, atol=2**-7 * size)

    def test_launches_fit_any_gpu(self):
        for warp, memory, capability in ((32, 228, 9), (32, 164, 8), (32, 100, 8), (64, 64, 0)):
            asked = {
                "_device": lambda device, warp=warp: (132, warp),
                "_shared_memory": lambda device, memory=memory: memory * 1024,
                "_capability": lambda device, capability=capability: capability,
            }
            with stand_ins.replaced(self.kernel, **asked):
                for M in (1, 16, 64, 65, 500, 4096):
                    for N in (24, 1024, 4096):
                        for bits in (16, 32):
                            for K in (1, 100, 4096, 14336):
                                options = self.kernel._forward_launch(K, bits, torch.device("cuda"), M, N)
                                BM, BN, BK = (options[name] for name in ("BM", "BN", "BK"))
                                last = warp == 64 or BM < 64  # is in registers: AMD's, and without wgmma
                                stages = options["num_stages"] - last
                                assert options["num_stages"] >= 2
                                bytes_ = (BM + BN) * BK * bits // 8 * stages * options["PER"]
                                assert bytes_ <= memory * 1024, (M, N, K, bits, capability, options)
                                assert options["num_warps"] * warp <= 512

    def test_mixed_dtypes_are_refused(self, device):
        x, weight, bias = self.make((3, 8), torch.float32, device)
        for index, name in enumerate(("b", "bias", "residual"), 1):
            given = [x, weight.t(), bias, torch.ones(3, self.N, device=device)]
            given[index] = given[index].half()
            with pytest.raises(TypeError, match=rf"^{name}: expected torch.float32, as a has, got torch.float16$"):
                kernel.matmul(*given)

    @pytest.mark.parametrize(
        "a, b, bias, residual, error, message",
        (
            ([1.0], torch.ones(1, 8), None, None, TypeError, "a: expected .*tensor, got <class 'list'>"),
            (torch.ones(2, 8).int(), torch.ones(8, 4), None, None, TypeError, "a: expected .* got torch.int32"),
            (torch.ones(2, 8), torch.ones(8, 4).double(), None, None, TypeError, "b: expected .* got torch.float64"),
            (torch.ones(2, 8), torch.ones(8, 4).half(), None, None, TypeError, "b: expected torch.float32, as a has"),
            (torch.ones(2, 8), None, None, None, TypeError, "b: expected .*tensor, got <class 'NoneType'>"),
            (torch.ones(2, 8), torch.ones(8, 4), 1, None, TypeError, "bias: expected .*tensor, got <class 'int'>"),
            (torch.ones(()), torch.ones(8, 4), None, None, ValueError, "a: expected at least one dimension, got none"),
            (torch.ones(2, 8), torch.ones(4, 8), None, None, ValueError, r"b: expected shape \[8, N\].* got \[4, 8"),
            (torch.ones(2, 8), torch.ones(8), None, None, ValueError, r"b: expected shape \[8, N\].* got \[8\]"),
            (torch.ones(2, 8), torch.ones(3, 8, 4), None, None, ValueError, r"b: expected shape .* got \[3, 8, 4\]"),
            (torch.ones(2, 8), torch.ones(8, 4), torch.ones(8), None, ValueError, r"bias: expected shape \[4\], got"),
            (torch.ones(2, 8), torch.ones(8, 4), None, torch.ones(4), ValueError, r"residual: expected .* got \[4\]"),
            (torch.ones(2, 8), torch.ones(8, 4, device="meta"), None, None, ValueError, "b: expected on .*, where a "),
        ),
    )  # fmt: skip
    def test_wrong_input_is_named(self, a, b, bias, residual, error, message, device):
        with pytest.raises(error, match=message) as caught:
            kernel.matmul(*(placed(t, device) for t in (a, b, bias, residual)))
        assert "\n" not in str(caught.value)


class Matmul(Linear):
    """a @ b with all that may follow, where both operands lie as they like."""

    inputs = ("a", "b", "bias", "residual")

    def __init__(self, activation=None):
        self.activation = activation

    def function(self, *inputs):
        return kernel.matmul(*inputs, activation=self.activation)

    def plain(self, a, b, bias, residual):
        return ACTIVATIONS[self.activation](a @ b + bias) + residual

    def summands(self, arguments, grads, reference):
        return {}

    def check_at(self, M, N, K, dtype, device, layout="b turned", grads=None):
        a, b = randn((M, K), dtype, device), randn((K, N), dtype, device, 1) * K**-0.5
        if layout != "plain":
            b = b.t().contiguous().t()
        if layout == "both turned":
            a = a.t().contiguous().t()
        if layout == "apart":
            a, b = (torch.cat([t, t], 1)[:, ::2] for t in (a, b))
        bias, residual = randn((N,), dtype, device, 2), randn((M, N), dtype, device, 3)
        return self.check((a, b.to(dtype), bias, residual), grads)


SHAPES = ((1, 8, 8), (1, 64, 4096), (16, 40, 520), (64, 72, 2048), (65, 130, 64), (130, 264, 72), (300, 300, 136))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes_of_every_tile(shape, device):
    Matmul("silu").check_at(*shape, torch.float16, device)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_every_activation(activation, dtype, device):
    Matmul(activation).check_at(70, 136, 100, dtype, device)


@pytest.mark.parametrize("capability", (9, 8))
@pytest.mark.parametrize("layout", ("plain", "b turned", "both turned", "apart"))
@pytest.mark.parametrize("shape", ((65, 136, 72), (3, 24, 2048), (70, 33, 41)), ids=str)
def test_every_layout_by_descriptors_and_by_pointers(shape, layout, capability, device):
    """41 columns suit no descriptor; nothing does on GPUs that have none."""
    with stand_ins.replaced(kernel, _capability=lambda device: capability):
        Matmul("gelu").check_at(*shape, torch.float16, device, layout)


def test_an_operand_that_is_often_read_is_copied_where_no_descriptor_suits_it(device):
    """And only there."""
    t = randn((300, 41), torch.float16, device)

    def operand(reads):
        return kernel._operand(t.shape, t.stride(), 2, device, True, reads, 128, 64)

    assert operand(256) == (0, None, (41, 1), "pointers")
    assert operand(300) == (48, ([300, 41], [48, 1], [128, 64]), (1, 1), "rows")
    copied = kernel._padded(t, 48)
    assert torch.equal(copied, t) and copied.stride() == (48, 1) and kernel._padded(t, 0) is t
    with stand_ins.replaced(kernel, _capability=lambda device: 8):
        assert operand(300) == operand(256)
    Matmul("gelu").check_at(300, 301, 41, torch.float16, device, "plain")


def placed_at(shape, dtype, start):
    """Ones, so many elements behind an address that 64 divides."""
    count = torch.Size(shape).numel()
    return torch.ones(count + start, dtype=dtype)[start:].view(shape)


def calls():
    """Pairs of calls, of which the second has other tensors of the same kind."""
    off = ((0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1))
    of = (torch.bfloat16, torch.float32), ((64, 64, 64), (1, 64, 64), (16, 40, 4096), (300, 301, 41)), off
    for dtype, (M, N, K), starts in itertools.product(*of):
        for turned, further, again in itertools.product((False, True), (None, 0, 7), (64, 128)):
            shapes = (M, K), (N, K) if turned else (K, N), (N,), (M, N + (further or 0))
            a, b, bias, residual = (placed_at(s, dtype, again + start) for s, start in zip(shapes, starts, strict=True))
            yield a, b.t() if turned else b, *(() if further is None else (bias, residual[:, :N]))


def strides_in(launch):
    """Of the operands and the residual, as their tensors have them, and as the kernel gets them."""
    given = dict(zip(launch.kernel.arg_names, launch.arguments, strict=False))
    for name in {"a", "b"} & given.keys():
        t = given[name]
        if isinstance(t, TensorDescriptor):
            turned = slice(None, None, -1 if given[f"{name.upper()}_BY"] == "columns" else 1)
            yield (*t.base.shape, *t.base.stride()), (*t.shape[turned], *t.strides[turned])
        else:
            yield t.stride(), (given[f"{name}_row"], given[f"{name}_col"])
    if given.get("residual_ptr") is not None:
        yield given["residual_ptr"].stride(0), given["residual_row"]


def test_a_launch_is_used_again_only_where_triton_would_find_the_same(monkeypatch):
    """Triton looks a kernel up by its arguments: whether 16 divides an address or a size, whether one is 1."""
    asked: dict[object, list] = {}

    def noted(launch, *tensors):
        real(launch, *tensors)
        given = launches[-1]
        assert all(own == as_given for own, as_given in strides_in(given))
        described = [t for t in given.arguments if isinstance(t, TensorDescriptor)]
        others = [t for t in given.arguments if not isinstance(t, Tensor | TensorDescriptor)]
        assert [dataclasses.replace(t) for t in described] == described, "with the checks of __init__"
        layouts = [(t.shape, t.strides, t.block_shape) for t in described]
        asked.setdefault(launch, []).append((compiled.variant(given, "sm_90"), layouts, others, given.keywords))

    real = kernel._Launch.__call__
    monkeypatch.setattr(kernel._Launch, "__call__", noted)
    with compiled.recording(kernel, "sm_90") as launches:
        for inputs in calls():
            kernel.matmul(*inputs)
    assert all(len(each) > 1 and each.count(each[0]) == len(each) for each in asked.values())
    assert len(launches) == sum(map(len, asked.values())) > 2 * len({str(each[0]) for each in asked.values()}) > 100


@pytest.mark.parametrize("target, found", (("sm_90", "JIT compiled JIT compiled"), ("gfx942", "JIT JIT JIT JIT")))
def test_the_second_launch_goes_to_what_was_compiled(target, found):
    """With the second call's tensors, and all else as before. AMD's specialisation asks for more than a plan knows."""
    launched = []

    class Compiled:
        def __getitem__(self, grid):
            return lambda *arguments: launched.append(("compiled", grid, arguments))

    class Jitted:
        def __getitem__(self, grid):
            return lambda *arguments, **options: launched.append(("JIT", grid, arguments)) or Compiled()

    of = [[placed_at((64, 64), torch.bfloat16, at) for at in (start, 0)] for start in (0, 8, 1, 9)]
    with stand_ins.on(kernel, target):
        given = {"CompiledKernel": Compiled, "_matmul_kernel": Jitted(), "_INTERPRETED": True}
        with stand_ins.replaced(kernel, _forward_launch=unsplit(kernel._forward_launch), **given):
            for a, b in of:
                kernel.matmul(a, b)
    assert " ".join(how for how, *_ in launched) == found
    for (a, b), (_, grid, arguments) in zip(of, launched, strict=True):
        assert [getattr(t, "base", t).data_ptr() for t in arguments[:2]] == [a.data_ptr(), b.data_ptr()]
        assert grid == launched[0][1]
    assert launched[0][2][3:] == launched[1][2][3:] and launched[2][2][3:] == launched[3][2][3:]


def unsplit(table):
    return lambda *asked: table(*asked) | {"SPLITS": 1}


def test_what_stands_in_for_the_launch_table_reaches_a_launch_that_was_planned_before():
    a, b = torch.ones(64, 64), torch.ones(64, 64)
    with compiled.recording(kernel, "sm_90") as launches:
        kernel.matmul(a, b)
        options = kernel._forward_launch(64, 32, a.device, 64, 64)
        with stand_ins.launching(kernel, "forward", options | {"num_warps": 16}):
            kernel.matmul(a, b)
        kernel.matmul(a, b)
    warps = options["num_warps"]
    assert [launch.keywords["num_warps"] for launch in launches] == [warps, 16, warps]


def test_a_knob_of_triton_that_compiles_anew_does_so_here(monkeypatch):
    a, b = torch.ones(64, 64), torch.ones(64, 64)
    with compiled.recording(kernel, "sm_90"):
        for knob, value in (("runtime", "debug"), ("compilation", "instrumentation_mode")):
            before = kernel._planned.cache_info().misses
            kernel.matmul(a, b)
            monkeypatch.setattr(getattr(triton.knobs, knob), value, "another")
            kernel.matmul(a, b)
            kernel.matmul(a, b)
            assert kernel._planned.cache_info().misses == before + 1 + (knob == "runtime")


@pytest.mark.parametrize("shape", ((3, 0, 5), (0, 4, 5), (3, 4, 0)), ids=str)
def test_no_rows_no_columns_or_nothing_to_add_up(shape, device):
    M, N, K = shape
    given = (torch.ones(M, K), torch.ones(K, N), torch.ones(N), torch.ones(M, N))
    ours = Matmul("silu")
    given = tuple(t.to(device) for t in given)
    found, expected = ours.run(ours.function, given), ours.run(ours.plain, given)
    for name, t in expected.items():
        torch.testing.assert_close(found[name], t)


@pytest.mark.parametrize("activation", (None, "gelu"))
def test_linear_and_activation_keep_one_sum_for_the_backward(activation, device):
    """As PyTorch's two operations: what the activation got. Without an activation nothing beside the inputs is kept."""
    x, weight, bias = Linear().make((3, 100), torch.float32, device)
    leaves, kept = [t.requires_grad_() for t in (x, weight, bias)], []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        kernel.matmul(x, weight.t(), bias, activation=activation)
    new = [t for t in kept if t.numel() and t.data_ptr() not in [leaf.data_ptr() for leaf in leaves]]
    assert len(new) == (activation is not None)
    for t in new:
        torch.testing.assert_close(t, F.linear(x, weight, bias))


@pytest.mark.parametrize("turned", (False, True))
def test_the_gradient_of_a_weight_has_its_layout(turned, device):
    """Else the optimizer's first step would copy it."""
    b = torch.randn(40, 24, device=device)
    b = (b.t().contiguous().t() if turned else b).requires_grad_()
    grad = torch.autograd.grad(kernel.matmul(torch.randn(5, 40, device=device), b).sum(), b)[0]
    assert grad.stride() == b.stride()


def test_split_sums_keep_their_order(device):
    """In every run, and the one that is stated."""
    a = torch.ones(1, 4096, device=device, dtype=torch.float16)
    b = randn((4096, 24), torch.float16, device)
    options = kernel._forward_launch(4096, 16, device, 1, 24)
    pieces = options["SPLITS"]
    if pieces == 1:
        pytest.skip("not split on this GPU")
    blocks, exact = 4096 // options["BK"], b.double()
    cuts = [piece * blocks // pieces * options["BK"] for piece in range(pieces + 1)]
    total = torch.zeros(24, device=device)
    for start, stop in itertools.pairwise(cuts):
        total += exact[start:stop].sum(0).float()
    y = kernel.matmul(a, b)
    assert torch.equal(y, kernel.matmul(a, b))
    torch.testing.assert_close(y[0], total.half(), rtol=2e-3, atol=2e-3)


def test_memory_stays_flat_over_a_thousand_shapes(device):
    def at(first):
        for i in range(first, first + 700):
            kernel._forward_launch(64 + i, 16, device, 1 + i % 300, 8 * (i % 77 + 1))
            of = (1 + i % 300, 64 + i), (64 + i, 1), (64 + i, 8), (8, 1)
            kernel._planned(kernel._forward_launch, (), torch.float16, device, *of, 1, None, False, *[True] * 6)

    at(0)
    tracemalloc.start()
    at(1000)
    before = tracemalloc.get_traced_memory()[0]
    at(2000)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 100_000, grown  # a thousand answers take four times as much
    assert all(
        value.cache_parameters()["maxsize"] is not None
        or name.startswith(("_device", "_shared", "_capab", "_sum", "_back"))
        for name, value in vars(kernel).items()
        if hasattr(value, "cache_parameters")
    )


def test_large_shapes_take_large_tiles_and_few_rows_are_split():
    """What the launch table is for, on an H100."""
    with stand_ins.on(kernel, "sm_90"):
        table = {
            shape: kernel._forward_launch(shape[2], 16, torch.device("cuda"), *shape[:2])
            for shape in ((8192, 8192, 8192), (16, 1024, 4096), (1, 128256, 4096))
        }
    large, few, wide = table.values()
    assert (large["BM"], large["BN"], large["SPLITS"]) == (128, 256, 1)
    assert few["BM"] == 16 and few["SPLITS"] > 1 and wide["SPLITS"] == 1


def test_fp32_is_cut_to_tf32_only_by_choice():
    """As the launcher gets it: the interpreter multiplies fp32 as it is."""
    a, b = torch.ones(200, 64), torch.ones(64, 200)
    for dtype, tf32, expected in (
        (torch.float32, False, kernel._FP32), (torch.float32, True, "tf32"), (torch.bfloat16, True, "ieee"),
    ):  # fmt: skip
        (launch,) = compiled.recorded(kernel, lambda: kernel.matmul(a.to(dtype), b.to(dtype), tf32=tf32), "sm_90")  # noqa: B023
        assert launch.arguments[launch.kernel.arg_names.index("PRECISION")] == expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tanh_in_one_instruction_for_bf16_alone(dtype):
    """Its error, 2^-11, is what fp16 rounds to."""
    a, b = torch.ones(200, 64, dtype=dtype), torch.ones(64, 200, dtype=dtype)
    (launch,) = compiled.recorded(kernel, lambda: kernel.matmul(a, b, activation="gelu-tanh"), "sm_90")
    assert launch.arguments[launch.kernel.arg_names.index("FAST")] == (dtype == torch.bfloat16)
