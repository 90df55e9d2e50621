"""Each stage of the first kernel: what it gets right, what it gets wrong, and that the next one mends it."""

import re

import pytest
import torch
import triton

from snippets.kernels import first_kernel
from snippets.kernels.first_kernel import first, written_out
from snippets.kernels.first_kernel_backward import with_backward
from snippets.kernels.first_kernel_rows import any_layout, any_length, any_offset
from snippets.kernels.first_kernel_wide import any_width, more_warps
from snippets.validation.equivalence import check
from tests.benchmarks.captures import sections

INTERPRETED = not isinstance(first_kernel.first_kernel, triton.runtime.JITFunction)
DEVICE = "cpu" if INTERPRETED else "cuda"


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
