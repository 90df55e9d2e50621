"""The backward, and what there is without one."""

import pytest
import torch

from snippets.kernels.first_kernel_backward import with_backward
from tests.exercises.test_first_kernel import loops
from tests.snippets.kernels.test_first_kernel import ALL, randn


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
