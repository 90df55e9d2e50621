"""What cannot be planned says why."""

import pytest
import torch

from snippets.compiler.fusion_plan import plan


def test_a_function_that_cannot_be_planned_says_why():
    def broken(x: torch.Tensor) -> torch.Tensor:
        return x.sum().item() * x if x.sum() > 0 else x

    with pytest.raises(torch._dynamo.exc.Unsupported):
        plan(broken, torch.ones(4))
