"""Tiles are numbered down a group first, and other matrices are refused."""

import pytest
import torch
import triton
import triton.language as tl

from snippets.kernels import matmul_steps_tiles
from snippets.kernels.matmul_steps import STEPS
from tests.snippets.kernels.test_first_kernel import DEVICE


@triton.jit
def places_kernel(seen_ptr, M, N, GROUP: tl.constexpr):
    row, col = matmul_steps_tiles.place(tl.program_id(0), M, N, 128, 256, GROUP)
    tl.store(seen_ptr + 2 * tl.program_id(0), row)
    tl.store(seen_ptr + 2 * tl.program_id(0) + 1, col)


@pytest.mark.parametrize("group", (1, 2, 3, 16))
def test_tiles_are_numbered_down_a_group_first(group):
    down, across = 5, 3
    seen = torch.full((down * across, 2), -1, dtype=torch.int32, device=DEVICE)
    places_kernel[(down * across,)](seen, down * 128, across * 256, GROUP=group)
    expected = [
        [128 * row, 256 * col]
        for first in range(0, down, group)
        for col in range(across)
        for row in range(first, min(first + group, down))
    ]
    assert seen.tolist() == expected


@pytest.mark.parametrize(
    ("change", "message"),
    (
        (lambda a, b: (a.float(), b), "a: expected a contiguous matrix in"),
        (lambda a, b: (a, b.bfloat16()), r"b: expected 64 rows in torch.float16"),
        (lambda a, b: (a, b[:32]), r"b: expected 64 rows .*, got 32"),
        (lambda a, b: (a.t().contiguous().t(), b), r"a: expected a contiguous matrix .* strides \[1, 128\]"),
        (lambda a, b: (a[:100], b), "expected M, N, K that are multiples of .*, got 100, 256, 64"),
        (lambda a, b: (a[:0], b), "got 0, 256, 64"),
        (lambda a, b: (a[0], b), r"a: expected a contiguous matrix .* shape \[64\]"),
    ),
)
def test_what_it_does_not_take(change, message):
    a, b = (torch.zeros(*shape, dtype=torch.float16, device=DEVICE) for shape in ((128, 64), (64, 256)))
    for step in STEPS:
        with pytest.raises(ValueError, match=message):
            step(*change(a, b))
