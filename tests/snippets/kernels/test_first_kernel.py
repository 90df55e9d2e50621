"""Each stage of the first kernel: what it gets right, what it gets wrong, and that the next one mends it."""

import re
import subprocess
import sys

import pytest
import torch
import triton

from snippets.kernels import first_kernel
from snippets.kernels.first_kernel import (
    any_layout,
    any_length,
    any_offset,
    any_width,
    first,
    more_warps,
    rounded_up,
    with_backward,
    written_out,
)
from snippets.validation.equivalence import check
from tests.benchmarks.captures import sections
from tests.benchmarks.source import ROOT
from tests.exercises.test_first_kernel import loops
from tests.kernels import interpreter

INTERPRETED = not isinstance(first_kernel.first_kernel, triton.runtime.JITFunction)
DEVICE = "cpu" if INTERPRETED else "cuda"
INF = float("inf")


@pytest.fixture
def overflow_is_an_error():
    """In the interpreter; a GPU has no such mode."""
    interpreter.watch_overflow(INTERPRETED)
    yield
    interpreter.watch_overflow(False)


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)


def holds(stage, x: torch.Tensor) -> None:
    exact, plain = torch.softmax(x.double(), -1), torch.softmax(x, -1)
    check({"output": stage(x)}, {"output": plain}, {"output": exact})


def differs(stage, x: torch.Tensor) -> None:
    with pytest.raises(AssertionError, match="error"):
        holds(stage, x)


ALL = (first, any_length, any_layout, any_offset, more_warps, any_width, with_backward)


@pytest.mark.parametrize("stage", (written_out, *ALL))
def test_every_stage_is_right_where_the_first_is(stage):
    holds(stage, randn(7, 256))
    holds(stage, 1000 + randn(7, 256))  # exp(1000) is inf: the maximum has to go first


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
@pytest.mark.parametrize("stage", ALL)
def test_every_stage_computes_in_fp32(stage, dtype):
    x = randn(5, 128, dtype=dtype)
    torch.testing.assert_close(stage(x).float(), torch.softmax(x.float(), -1), rtol=2**-7, atol=1e-6)


def behind(rows: int, columns: int) -> torch.Tensor:
    """Rows with memory of ours behind the last: what reads on reads numbers."""
    return randn(rows * columns + 4096)[: rows * columns].view(rows, columns)


def test_odd_rows_do_not_compile_and_rounded_up_read_the_next_row():
    x = behind(4, 100)
    with pytest.raises(Exception, match="arange's range must be a power of 2"):
        first(x)
    differs(rounded_up, x)
    assert (rounded_up(x).sum(-1) < 0.99).all()  # too much was added up


@pytest.mark.parametrize("stage", ALL[1:])
@pytest.mark.parametrize("columns", (1, 3, 100, 1000))
def test_the_mask_mends_odd_rows(stage, columns):
    holds(stage, behind(4, columns))


LAYOUTS = {
    "every other row": lambda: randn(8, 64)[::2],
    "some columns": lambda: randn(8, 64)[:, 7:40],
    "transposed": lambda: randn(16, 16).t(),
    "every other column": lambda: randn(8, 64)[:, ::2],
    "expanded": lambda: randn(1, 32).expand(8, 32),
}


@pytest.mark.parametrize("layout", ("every other row", "some columns", "transposed", "every other column"))
def test_without_strides_views_are_read_elsewhere(layout):
    differs(any_length, LAYOUTS[layout]())


@pytest.mark.parametrize("stage", ALL[2:])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_mend_views(stage, layout):
    x = LAYOUTS[layout]()
    assert stage(x).is_contiguous()
    holds(stage, x)


@pytest.mark.parametrize("stage", ALL[2:])
def test_any_number_of_dimensions(stage):
    holds(stage, randn(2, 3, 40))
    holds(stage, randn(40))


def far_rows() -> torch.Tensor:
    """Three rows, the last 2^31 elements from the first; untouched memory costs nothing."""
    memory = torch.empty(2**31 + 8, dtype=torch.bfloat16, device=DEVICE)
    return memory.as_strided((3, 8), (2**30, 1)).copy_(randn(3, 8))


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU the 32-bit offset is a wild address, which ends the process")
def test_32_bits_do_not_reach_far_rows(overflow_is_an_error):
    with pytest.raises(Exception, match="int32 overflow detected"):
        any_layout(far_rows())


@pytest.mark.parametrize("stage", (any_offset, more_warps, any_width, with_backward))
def test_64_bits_reach_far_rows(stage, overflow_is_an_error):
    x = far_rows()
    torch.testing.assert_close(stage(x), stage(x.contiguous()), rtol=0, atol=0)


def test_offsets_wrap_as_the_page_prints():
    offsets = torch.empty(3, 2, dtype=torch.int64, device=DEVICE)
    first_kernel.offset_kernel[(3,)](offsets, 2**30)
    assert offsets.tolist() == [[0, 0], [2**30, 2**30], [-(2**31), 2**31]]


@pytest.mark.parametrize("stage", ALL[1:5])
def test_one_tile_has_a_largest_size(stage):
    with pytest.raises(Exception, match="exceeds triton maximum tensor numel"):
        stage(randn(1, 2**20 + 1))


@loops
def test_the_loop_mends_wide_rows():
    holds(any_width, randn(1, 2**20 + 1))
    holds(any_width, randn(2, 20000)[:, :19001])


@loops
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning:triton")  # numpy's, of the row that becomes NaN
@pytest.mark.parametrize("columns", (100, 20000))
def test_masked_entries(columns):
    """A tile of nothing but -inf, at the start of a row or at its end; a row of them is NaN, as in PyTorch."""
    x = randn(4, columns)
    x[0, : columns // 2], x[1, columns // 2 :], x[2, :-1], x[3] = -INF, -INF, -INF, -INF
    holds(any_width, x)
    assert any_width(x)[3].isnan().all() and not any_width(x)[:3].isnan().any()


@pytest.mark.parametrize("stage", ALL[:-1])
def test_a_launch_is_no_operation_that_autograd_knows(stage):
    x = randn(4, 64).requires_grad_()
    assert not stage(x).requires_grad
    (stage(x) * x).sum().backward()  # and nobody says that a part of this gradient is missing
    wrong = x.grad
    expected = torch.autograd.grad((torch.softmax(x, -1) * x).sum(), x)[0]
    assert not torch.allclose(wrong, expected, atol=1e-2)


@loops
@pytest.mark.parametrize("shape", ((4, 64), (3, 1000), (1, 20000), (2, 3, 40)), ids=str)
def test_the_backward_mends_the_gradient(shape):
    x = randn(*shape).requires_grad_()
    weights = randn(*shape).flip(0)
    for back in (lambda y: (y * weights).sum(), lambda y: y.sum(), lambda y: (y.mT * weights.mT).sum()):
        ours, exact = (
            torch.autograd.grad(back(function(x)), x)[0]
            for function in (with_backward, lambda x: torch.softmax(x.double(), -1).float())
        )
        torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-6)


def test_the_script_prints_a_verdict_of_every_stage(script):
    done = script("snippets.kernels.first_kernel")
    if done.returncode and INTERPRETED and triton.__version__.startswith("3.6"):
        pytest.skip("Triton 3.6 interprets no loop over a range with NumPy 2.4")
    lines = sections(done.stdout)["stages"].splitlines()[1:]
    verdicts = {line.split()[0]: re.findall("right|wrong|error|none", line) for line in lines}
    assert verdicts == {
        "first": ["right", "error", "wrong", "wrong", "error", "none"],
        "rounded_up": ["right", "wrong", "wrong", "wrong", "error", "none"],
        "any_length": ["right", "right", "wrong", "wrong", "error", "none"],
        "any_layout": ["right", "right", "right", "right", "error", "none"],
        "any_offset": ["right", "right", "right", "right", "error", "none"],
        "any_width": ["right", "right", "right", "right", "right", "none"],
        "with_backward": ["right", "right", "right", "right", "right", "right"],
    }


@pytest.mark.parametrize(("columns", "widths"), (("i32", "8 of 16 bits"), ("i32:16", "1 of 128 bits")))
def test_rows_that_may_begin_anywhere_are_loaded_in_small_pieces(columns, widths):
    """As the page's command prints: it compiles for an H200, and needs no GPU."""
    kernel = "snippets/kernels/first_kernel.py:masked_kernel"
    command = [sys.executable, "-m", "snippets.validation.compiled_code", kernel, "--signature"]
    done = subprocess.run(
        [*command, f"*bf16:16, *bf16:16, {columns}, 1024"], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert re.search(rf"^loads +{widths}$", done.stdout, flags=re.MULTILINE), done.stdout + done.stderr
