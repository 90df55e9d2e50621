"""A finite gradient is not found."""

import torch
from torch import nn

from snippets.examples import multi_gpu_failures_checks


def test_a_finite_gradient_is_not_found() -> None:
    model = nn.Linear(2, 2)
    found = multi_gpu_failures_checks.watch(model)
    model(torch.ones(1, 2)).sum().backward()
    assert not found
