"""kernels/swiglu_cuda.py, swiglu.cu: what kernels/swiglu.py promises, in CUDA C++."""

import pytest
import torch
import torch.nn.functional as F

from tests.benchmarks.cuda import launched
from tests.kernels import cuda, on_host
from tests.kernels import test_swiglu as in_triton
from tests.kernels.conftest import load
from tests.kernels.promises import DTYPES, needs_gpu, randn

kernel = load("swiglu_cuda")
OWN = {  # definitions of the kernel file: see tests/pages/test_copies.py
    "_FORMS _Kernel _NAMES _gated _launch _macros swiglu": "launched as CUDA C++",
    "_BACKWARD _FORWARD _ONCE _Once _backward_fake _checked _differentiable _nested _refuse_transforms": "swiglu",
}


class TestSwiGLU(cuda.Promises, in_triton.TestSwiGLU):
    kernel = kernel

    test_launches_fit_any_gpu = None


class TestGeGLU(cuda.Promises, in_triton.TestGeGLU):
    kernel = kernel
    test_launches_fit_any_gpu = None


class Halves(in_triton.Halves):
    kernel = kernel


@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", (2, 6, 254, 1000, 2256, 8194))
def test_halves_of_one_tensor(columns, dtype, device):
    Halves().check(Halves().make((5, columns), dtype, device))


@needs_gpu
@pytest.mark.parametrize(
    "promise, arguments",
    (
        ("test_any_leading_shape", ((2, 3, 8),)),
        ("test_empty_input", ((2, 0, 8),)),
        ("test_any_strides_of_inputs_and_of_incoming_gradients", ("every other column", 40)),
        ("test_any_strides_of_inputs_and_of_incoming_gradients", ("rows of a wider tensor", 2500)),
        ("test_leading_dimensions_that_no_view_joins", ()),
        ("test_rows_more_than_2_to_the_31_elements_apart", (96, 3, 2**30 + 16)),
        ("test_inputs_are_not_touched", (100,)),
        ("test_activation_checkpointing", ()),
        ("test_compiles_as_one_graph", (True,)),
    ),
)
def test_halves_of_one_tensor_promise_the_same(promise, arguments, device):
    getattr(Halves(), promise)(*arguments, device)


@needs_gpu
def test_halves_of_more_than_2_to_the_31_elements_each(device):
    """Rows whose length 8 does not divide: a vector is one element, and there are more than 32 bits count."""
    rows = 2**31 // 1001 + 3
    few = randn((7, 2002), torch.bfloat16, device)
    expected = Halves().run(Halves().function, (few,), (few[:, :1001],))
    many = few.repeat(rows // 7 + 1, 1)[:rows]
    for name, t in Halves().run(Halves().function, (many,), (many[:, :1001],)).items():
        assert torch.equal(t[:7], expected[name]), name
        assert torch.equal(t[rows - 7 :], expected[name].roll(-(rows % 7), 0)), name


@needs_gpu
@pytest.mark.parametrize("columns", (12345, 4096))
def test_memory_that_begins_anywhere(columns, device):
    """No vector may be read at an odd address: tensors that begin one element into their memory."""
    gate, up = (randn(columns + 1, torch.bfloat16, device, seed)[1:] for seed in (1, 2))
    torch.testing.assert_close(kernel.swiglu(gate, up), F.silu(gate.float()).mul(up.float()).to(gate.dtype))


# ---- machine code, with no GPU --------------------------------------------------------------------------------------


def hold(facts):
    """Nothing spills, and 16 bytes are moved at once; tests/pages/test_compiled.py holds what the site has of it."""
    assert facts.spilled == 0 and facts.fp64 == 0, facts
    assert facts.stores[128] and facts.loads[128] and 32 not in facts.loads, facts


@cuda.compiles
@pytest.mark.parametrize("target", ("sm_80", "sm_90", "sm_100"))
def test_of_halves_nothing_spills_and_16_bytes_are_moved_at_once(target):
    halves = torch.empty(3, 4096, dtype=torch.bfloat16)
    dy = halves[:, :2048]
    for activation in ("silu", "gelu"):
        step = lambda: (kernel._forward(halves, None, activation), kernel._backward(dy, halves, None, activation))  # noqa: B023, E731
        for launch in launched(kernel, step):
            hold(cuda.facts(kernel, launch, target))


@cuda.needs_nvcc
def test_nvcc_compiles_it_as_it_stands(tmp_path):
    cuda.compile_by_nvcc(kernel._SOURCE, tmp_path)


# ---- the same source on a CPU ---------------------------------------------------------------------------------------


@on_host.needs_compiler
@pytest.mark.parametrize(
    "of, activation",  # what is computed of two numbers does not depend on where they lie
    (
        ("two tensors", "silu"), ("two tensors", "gelu"), ("two tensors", "gelu-tanh"), ("halves", "gelu"),
        ("rows apart", "silu"),
    ),
)  # fmt: skip
def test_on_a_cpu_it_computes_the_same(of, activation):
    dtype = {"two tensors": torch.bfloat16, "halves": torch.float16, "rows apart": torch.float32}[of]
    columns = {"two tensors": 1031, "halves": 96, "rows apart": 99}[of]  # a last block that is not full; odd rows
    memory = randn((3, 2 * columns), dtype, "cpu")
    gate, up, dy = memory[:, :columns], memory[:, columns:], randn((3, columns), dtype, "cpu", 1)
    given = (
        (gate.contiguous(), up.contiguous())
        if of == "two tensors"
        else (memory, None)
        if of == "halves"
        else (gate, up)
    )
    with on_host.on_host(kernel):
        y = kernel._forward(*given, activation)
        dgate, dup = kernel._backward(dy, *given, activation)
    if of == "halves":
        dgate, dup = dgate.chunk(2, -1)
    leaves = [t.double().requires_grad_() for t in (gate, up)]
    function = (
        F.silu if activation == "silu" else lambda t: F.gelu(t, approximate="tanh" if "tanh" in activation else "none")
    )
    exact = function(leaves[0]) * leaves[1]
    expected = (exact, *torch.autograd.grad(exact, leaves, dy.double()))
    bound = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 1e-6}[dtype]
    for ours, theirs in zip((y, dgate, dup), expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=bound, atol=bound / 8)
