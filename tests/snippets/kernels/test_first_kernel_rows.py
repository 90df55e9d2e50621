"""Rows of any length, anywhere in memory, and what is wrong without the mask, strides or 64 bits."""

import re
import subprocess
import sys

import pytest
import torch

from snippets.kernels import first_kernel_rows
from snippets.kernels.first_kernel import first, rounded_up
from snippets.kernels.first_kernel_backward import with_backward
from snippets.kernels.first_kernel_rows import any_layout, any_length, any_offset
from snippets.kernels.first_kernel_wide import any_width, more_warps
from tests.benchmarks.source import ROOT
from tests.kernels import interpreter
from tests.snippets.kernels.test_first_kernel import ALL, DEVICE, INTERPRETED, differs, holds, randn


@pytest.fixture
def overflow_is_an_error():
    """In the interpreter; a GPU has no such mode."""
    interpreter.watch_overflow(INTERPRETED)
    yield
    interpreter.watch_overflow(False)


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
    first_kernel_rows.offset_kernel[(3,)](offsets, 2**30)
    assert offsets.tolist() == [[0, 0], [2**30, 2**30], [-(2**31), 2**31]]


@pytest.mark.parametrize(("columns", "widths"), (("i32", "8 of 16 bits"), ("i32:16", "1 of 128 bits")))
def test_rows_that_may_begin_anywhere_are_loaded_in_small_pieces(columns, widths):
    """As the page's command prints: it compiles for an H200, and needs no GPU."""
    kernel = "snippets/kernels/first_kernel_rows.py:masked_kernel"
    command = [sys.executable, "-m", "snippets.validation.compiled_code", kernel, "--signature"]
    done = subprocess.run(
        [*command, f"*bf16:16, *bf16:16, {columns}, 1024"], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert re.search(rf"^loads +{widths}$", done.stdout, flags=re.MULTILINE), done.stdout + done.stderr
