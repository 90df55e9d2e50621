"""kernels/layer_norm_gelu_cuda.py, layer_norm_gelu.cu: what kernels/layer_norm_gelu.py promises, in CUDA C++."""

import pytest
import torch
import torch.nn.functional as F

from snippets.validation.equivalence import check
from tests.benchmarks.cuda import launched
from tests.kernels import cuda, on_host
from tests.kernels import test_layer_norm_gelu as in_triton
from tests.kernels.conftest import load
from tests.kernels.promises import DTYPES, NO_LAYER_NORM, needs_gpu, placed, randn

EPS = in_triton.EPS
kernel = load("layer_norm_gelu_cuda")
OWN = {  # definitions of the kernel file: see tests/pages/test_copies.py
    "(_MOST_ROWS,_MOST_COLUMNS) _contiguous _shared_memory _words layer_norm_gelu": "launched as CUDA C++",
    "_AUTOCAST _BACKWARD _FORWARD _backward_fake _differentiable _forward_fake": "layer_norm_gelu",
}


class TestLayerNormGELU(cuda.Promises, in_triton.TestLayerNormGELU):
    kernel = kernel
    MOST_COLUMNS = 2**18
    WAITING = (40000,)
    SUMS = ("_sum_kernel",)

    @pytest.mark.parametrize("x, weight, bias, error, message", NO_LAYER_NORM)
    def test_wrong_input_is_named(self, x, weight, bias, error, message, device):
        with pytest.raises(error, match=message):
            self.function(placed(x, device), placed(weight, device), placed(bias, device))

    def test_launches_fit_any_gpu(self):
        """Every column of a row is some thread's, and what is fetched ahead fits."""
        for columns in (1, 3, 8, 100, 1024, 1032, 2049, 4096, 5120, 8192, 9000, 16384, 20000, 32769, 131072, 262144):
            for plan in cuda.norm_plans(kernel, columns):
                assert 32 <= plan["THREADS"] <= 1024 and plan["THREADS"] % 32 == 0, plan
                block = plan["THREADS"] * plan["VECTORS"] * plan["VECTOR"]
                slices = -(-columns // plan["width"])
                assert slices <= 32 and plan["width"] <= block and plan["SLICED"] == (slices > 1), plan
                assert plan["FULL"] == (slices * block == columns), plan
                assert plan["shared"] <= 227 * 1024, plan


class Tanh(in_triton.Tanh):
    """The same promises of the other GELU; what does not depend on the GELU is not tested again."""

    __test__ = False
    kernel = kernel
    GRID = (1, 127, 1128, 4097, 9000, 66000)


@needs_gpu
class TestTanh:
    @pytest.mark.parametrize("columns, dtype", Tanh.held(), ids=str)
    def test_error_within_the_bound(self, columns, dtype, device):
        Tanh().test_error_within_the_bound(columns, dtype, device)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("path", TestLayerNormGELU.PATHS[:-1])
    def test_extreme_values(self, path, dtype, device):
        Tanh().test_extreme_values(path, dtype, device)

    def test_compiles_as_one_graph(self, device):
        Tanh().test_compiles_as_one_graph(True, device)


# ---- machine code, with no GPU --------------------------------------------------------------------------------------

SPILLS = {
    # in sliced rows, what does not change from row to row: stored once, and read where a block helps another
    ("layer_norm_gelu_forward", "sm_90"): 16,
    # the launch table is the fastest of the sweep on the H200; not measured on these GPUs
    ("layer_norm_gelu_forward", "sm_100"): 64,
    ("layer_norm_gelu_backward", "sm_80"): 8,
}
PUBLISHED = (1024, 9000, 32768, 131072)  # of 4096 and 16384 the site has it: see tests/pages/test_compiled.py


def hold(facts):
    """Machine code of a published row spills nothing and moves 16 bytes at once."""
    assert facts.spilled <= SPILLS.get((facts.kernel, facts.target), 0) and facts.fp64 == 0, facts
    if facts.kernel != "layer_norm_gelu_sum":
        assert facts.stores[128] and facts.loads.get(128, 0) and facts.registers * facts.warps * 32 <= 65536, facts


def launches(columns, dtype=torch.bfloat16):
    """What a step launches at a row length."""
    x, parameter = torch.empty(3, columns, dtype=dtype), torch.empty(columns, dtype=dtype)
    return launched(kernel, lambda: step(x, parameter, parameter, x))


@cuda.compiles
def test_published_rows_spill_nothing_and_move_16_bytes_at_once():
    for columns in PUBLISHED:
        for launch in launches(columns):
            hold(cuda.facts(kernel, launch, "sm_90"))


@cuda.compiles
@pytest.mark.parametrize("columns", (1000, 9001, 40000))
def test_other_rows_and_fp32_spill_nothing(columns):
    for dtype in (torch.bfloat16, torch.float32):
        for launch in launches(columns, dtype):
            assert cuda.facts(kernel, launch, "sm_90").spilled <= SPILLS.get((launch.name, "sm_90"), 0), launch


@cuda.compiles
def test_sums_of_16_bit_numbers_are_made_by_tensor_cores():
    for columns, dtype, products in ((1024, torch.bfloat16, True), (1000, torch.float32, False)):
        forward, backward, last = launches(columns, dtype)
        assert bool(cuda.facts(kernel, forward, "sm_90").tensor_core) == products
        assert not any(cuda.facts(kernel, other, "sm_90").tensor_core for other in (backward, last))


@cuda.needs_nvcc
def test_nvcc_compiles_it_as_it_stands(tmp_path):
    cuda.compile_by_nvcc(kernel._SOURCE, tmp_path)


# ---- the same source on a CPU ---------------------------------------------------------------------------------------

BASE = {"COLUMNS": 16, "ROWS": 2, "STAGES": 2, "AT_ONCE": 64, "SLICE": 16384}


def step(x, weight, bias, dy, approximate="none", eps=EPS):
    """What the two operators give."""
    tanh = approximate == "tanh"
    y, stats = kernel._forward(x, weight, bias, eps, tanh, x.dtype, True)
    parameters = weight is not None or bias is not None
    gradients = kernel._backward(dy, x, weight, bias, stats, tanh, parameters)
    names = "output", "x.grad", "weight.grad", "bias.grad"
    return {name: t for name, t in zip(names, (y, *gradients), strict=True) if t.numel()} | {"stats": stats}


def reference(dtype, x, weight, bias, dy, approximate="none", eps=EPS):
    leaves = {"x": x, "weight": weight, "bias": bias}
    leaves = {name: t.to(dtype).requires_grad_() for name, t in leaves.items() if t is not None}
    normal = F.layer_norm(leaves["x"], x.shape[-1:], leaves.get("weight"), leaves.get("bias"), eps)
    y = F.gelu(normal, approximate=approximate)
    gradients = torch.autograd.grad(y, list(leaves.values()), dy.to(dtype))
    found = zip(leaves, gradients, strict=True)
    return {"output": y.detach(), **{f"{name}.grad": t for name, t in found}}


@on_host.needs_compiler
@pytest.mark.parametrize(
    "rows, columns, dtype, offset, resident, options",
    (
        (5, 1024, torch.bfloat16, 0, 2, {}),  # two rows at a time; the last has no other
        (5, 1024, torch.bfloat16, 30, 9, {"STAGES": 0, "KEPT": 0}),  # the sums of squares leave too few digits
        (3, 520, torch.float16, 0, 1, {"ROWS": 1, "HELD": 1}),  # a row that does not fill its block
        (5, 100, torch.bfloat16, 1, 2, {}),  # rows that begin where no vector may be read
        (3, 384, torch.float32, 100, 2, {"COLUMNS": 8, "ROWS": 1, "HELD": 1}),
        (5, 2048, torch.bfloat16, 1, 4, {"SLICE": 512, "LAG": 1}),
        (5, 2000, torch.bfloat16, 1, 16, {"SLICE": 512, "LAG": 2, "STAGES": 3, "ROWS": 1}),
    ),
)  # fmt: skip
def test_on_a_cpu_it_computes_the_same(rows, columns, dtype, offset, resident, options):
    """Blocks run one after the other there. So of a row in slices, the first block does what the others would."""
    x, dy = randn((rows, columns), dtype, "cpu", offset=offset), randn((rows, columns), dtype, "cpu", 1)
    weight, bias = randn(columns, dtype, "cpu", 2, offset=1), randn(columns, dtype, "cpu", 3)
    with on_host.on_host(kernel, resident, **BASE | options):
        ours = step(x, weight, bias, dy)
    del ours["stats"]
    exact = [t.double() for t in (x, weight, bias, dy)]
    expected = reference(torch.float64, x, weight, bias, dy)
    summands = TestLayerNormGELU().summands(exact[:3], exact[3:], expected)
    check(ours, reference(dtype, x, weight, bias, dy), expected, summands)


@on_host.needs_compiler
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32), ids=str)
def test_on_a_cpu_rows_of_equal_and_of_huge_numbers(dtype):
    """Equal numbers leave the bias, to the bit, as does a variance beyond the range of fp32; NaN stays in its row."""
    columns = 512
    x = torch.tensor([[3.3], [-12345.67], [0.0]]).expand(3, columns).to(dtype)
    weight, bias = randn(columns, dtype, "cpu", 2, offset=1), randn(columns, dtype, "cpu", 3)
    dy = randn((3, columns), dtype, "cpu", 1)
    huge = torch.randn(3, columns).clamp(-1, 1) * torch.tensor([[1e25], [1e38], [1.0]])
    huge[2, 7] = float("nan")
    with on_host.on_host(kernel, **BASE | {"COLUMNS": 8}):
        ours = step(x, weight, bias, dy)
        assert torch.equal(ours["output"][0], ours["output"][2]) and torch.equal(ours["output"][1], ours["output"][2])
        torch.testing.assert_close(ours["output"][0], F.gelu(bias))
        assert (ours["stats"][1] < 0).all(), "the marks of such rows"
        largest = step(huge.to(dtype), weight, bias, dy)["output"]
    assert torch.equal(largest[0], ours["output"][0]) and torch.equal(largest[1], ours["output"][0])
    assert largest[2].isnan().all()


@on_host.needs_compiler
def test_on_a_cpu_parameters_may_be_none_and_gelu_with_tanh():
    x, dy = randn((3, 512), torch.bfloat16, "cpu"), randn((3, 512), torch.bfloat16, "cpu", 1)
    bias = randn(512, torch.bfloat16, "cpu", 2)
    with on_host.on_host(kernel, **BASE | {"COLUMNS": 8}):
        ours = step(x, None, bias, dy, "tanh")
    expected = reference(torch.float64, x, None, bias, dy, "tanh")
    for name, t in expected.items():
        torch.testing.assert_close(ours[name].double(), t, rtol=0.02, atol=0.02)
