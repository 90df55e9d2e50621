"""A float as learning rate recompiles at each change, but in one case."""

from collections.abc import Callable

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

CHANGES = 5  # of a learning rate


@pytest.mark.parametrize(
    ("optimizer", "foreach", "expected"),
    [
        (torch.optim.SGD, False, CHANGES + 2),
        (torch.optim.SGD, True, CHANGES + 2),
        (torch.optim.AdamW, True, CHANGES + 2),
        (torch.optim.AdamW, False, 2),
    ],
)
def test_a_float_as_learning_rate_recompiles_at_each_change_but_in_one_case(
    optimizer: Callable[..., torch.optim.Optimizer], foreach: bool, expected: int
) -> None:
    """There is one compilation more than values. The page on recompilation says so, too."""
    torch.compiler.reset()
    parameter = torch.nn.Parameter(torch.ones(8))
    update = optimizer([parameter], lr=0.5, foreach=foreach)
    counter = CompileCounterWithBackend("aot_eager")
    step = torch.compile(lambda: update.step(), backend=counter)
    for change in range(CHANGES + 1):
        parameter.grad = torch.ones(8)
        update.param_groups[0]["lr"] = 0.5 / (change + 1)
        step()
    assert counter.frame_count == expected
