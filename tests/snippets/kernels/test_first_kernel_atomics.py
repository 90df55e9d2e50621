"""Values that collide, within a program and across programs, are all counted."""

import pytest
import torch

from snippets.kernels.first_kernel_atomics import count
from tests.snippets.kernels.test_first_kernel import DEVICE


@pytest.mark.parametrize("size", (1, 255, 256, 1000))
@pytest.mark.parametrize("most", (0, 9))
def test_it_counts_as_bincount_does(size: int, most: int):
    values = torch.randint(most + 1, (size,), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    torch.testing.assert_close(count(values, most).long(), torch.bincount(values, minlength=most + 1))
