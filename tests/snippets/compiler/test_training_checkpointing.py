"""Each way to checkpoint computes the same gradients."""

import pytest
import torch
from torch import Tensor, nn

from snippets.compiler.training_checkpointing import selective, whole, with_run
from snippets.compiler.training_model import small
from snippets.compiler.training_step import loss_of


def gradients(loss: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("run", [whole, selective])
def test_checkpointed_gradients_are_the_same(run):
    model, batch = small(length=16, width=32, vocabulary=64)
    expected = gradients(loss_of(model, *batch), model)
    other = with_run(model, run)
    torch.testing.assert_close(gradients(loss_of(other, *batch), model), expected)
    torch.compiler.reset()
    compiled = torch.compile(loss_of, backend="aot_eager")
    torch.testing.assert_close(gradients(compiled(other, *batch), model), expected)
