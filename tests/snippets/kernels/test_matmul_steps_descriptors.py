"""Any number of programs shares the tiles."""

import pytest

from snippets.kernels import matmul_steps_descriptors
from tests.exercises.test_first_kernel import loops
from tests.snippets.kernels.test_matmul_steps import product


@loops
@pytest.mark.parametrize("programs", (1, 2, 5, 100))
def test_any_number_of_programs_shares_the_tiles(programs, monkeypatch):
    monkeypatch.setattr(matmul_steps_descriptors, "multiprocessors", lambda _: programs)
    product(matmul_steps_descriptors.persistent, 384, 64, 512)
    product(matmul_steps_descriptors.in_parts, 384, 64, 512)
