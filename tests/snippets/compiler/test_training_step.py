"""Parts of a batch update as the whole batch does, and the step is more than one graph."""

import copy

import pytest
import torch

from snippets.compiler.training_model import small
from snippets.compiler.training_step import MAX_NORM, train_step


def test_accumulated_halves_update_as_the_whole_batch_does():
    model, (tokens, targets) = small(length=16, width=32, vocabulary=64)
    updated = []
    for batches in ([(tokens, targets)], [(tokens[:1], targets[:1]), (tokens[1:], targets[1:])]):
        other = copy.deepcopy(model)
        optimizer = torch.optim.SGD(other.parameters(), lr=1.0)  # whose update is the clipped gradient
        loss = train_step(other, optimizer, batches, loss_of=lambda model, *batch: model(*batch))
        assert all(p.grad is None for p in other.parameters())
        updated.append(
            [loss, *(p.detach() - q.detach() for p, q in zip(other.parameters(), model.parameters(), strict=True))]
        )
    torch.testing.assert_close(updated[0], updated[1], atol=1e-6, rtol=1e-3)
    assert torch.cat([change.flatten() for change in updated[0][1:]]).norm() == pytest.approx(MAX_NORM, rel=1e-3)


def test_and_with_fullgraph_an_error():
    model, batch = small(length=16, width=32, vocabulary=64)
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"Tensor\.backward"):
        torch.compile(train_step, backend="eager", fullgraph=True)(
            model, torch.optim.AdamW(model.parameters()), [batch]
        )
