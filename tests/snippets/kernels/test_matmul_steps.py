"""Every step computes the product, and says what it does not take."""

import pytest
import torch

from snippets.kernels import matmul_steps, matmul_steps_descriptors
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
@pytest.mark.parametrize("step", (matmul_steps.grouped, matmul_steps_descriptors.in_parts))
def test_a_last_group_of_fewer_rows_of_tiles(step):
    product(step, 17 * 128, 64, 512)


@loops
def test_the_script_compares_every_step(script):
    done = script("snippets.kernels.matmul_steps")
    assert done.stdout.splitlines() == [f"{step.__name__}: as torch.mm" for step in STEPS], done.stderr
