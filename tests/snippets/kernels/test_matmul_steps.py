"""Every step computes the product, and says what it does not take."""

import pytest
import torch
import triton
import triton.language as tl

from snippets.kernels import matmul_steps
from snippets.kernels.matmul_steps import STEPS
from tests.exercises.test_first_kernel import loops
from tests.snippets.kernels.test_first_kernel import DEVICE, INTERPRETED

READ = ("tests/forked.py",)  # the script runs in it
DTYPES = (torch.float16,) if INTERPRETED else (torch.float16, torch.bfloat16)  # a bf16 dot is wrong in the interpreter


def product(step, M: int, K: int, N: int, dtype: torch.dtype = torch.float16) -> None:
    """Neighbouring tiles hold other numbers, and a result that is not written is wrong."""
    numbers = torch.Generator().manual_seed(0)
    a, b = (torch.randn(*shape, generator=numbers).to(DEVICE, dtype) for shape in ((M, K), (K, N)))
    exact = a.double() @ b.double()
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(step(a, b).double(), exact, rtol=unit, atol=unit * K**0.5 / 8)


@loops
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("step", STEPS)
def test_every_step_is_right(step, dtype):
    shape = (32, 48, 64) if step is matmul_steps.naive else (384, 128, 512)  # each some tiles both ways
    product(step, *shape, dtype)


@loops
@pytest.mark.parametrize("step", (matmul_steps.grouped, matmul_steps.in_parts))
def test_a_last_group_of_fewer_rows_of_tiles(step):
    product(step, 17 * 128, 64, 512)


@loops
@pytest.mark.parametrize("programs", (1, 2, 5, 100))
def test_any_number_of_programs_shares_the_tiles(programs, monkeypatch):
    monkeypatch.setattr(matmul_steps, "multiprocessors", lambda _: programs)
    product(matmul_steps.persistent, 384, 64, 512)
    product(matmul_steps.in_parts, 384, 64, 512)


@triton.jit
def places_kernel(seen_ptr, M, N, GROUP: tl.constexpr):
    row, col = matmul_steps.place(tl.program_id(0), M, N, 128, 256, GROUP)
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


@loops
def test_the_script_compares_every_step(script):
    done = script("snippets.kernels.matmul_steps")
    assert done.stdout.splitlines() == [f"{step.__name__}: as torch.mm" for step in STEPS], done.stderr
