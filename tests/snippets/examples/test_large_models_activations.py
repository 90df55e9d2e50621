"""Each change has the gradients of the plain step."""

import pytest
import torch
from torch import Tensor, nn

from snippets.examples import large_models_activations
from snippets.examples.large_models_change import EACH, Change
from tests.snippets.examples.test_large_models_shape import TOKENS, model

EAGER = [change for change in EACH.values() if change.budget is None and change.states == "fp32"]


def gradients(change: Change) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, and each gradient as an optimizer would get it."""
    found: dict[str, Tensor] = {}
    hooks = [
        p.register_post_accumulate_grad_hook(lambda p, name=name: found.__setitem__(name, p.grad.clone()))
        for name, p in model().named_parameters()
    ]
    try:
        loss = large_models_activations.changed(model(), change)(TOKENS)
        loss.backward()
    finally:
        for hook in hooks:
            hook.remove()
        model().zero_grad()
    return loss.detach(), found


@pytest.mark.parametrize("change", EAGER, ids=str)
def test_each_change_has_the_plain_gradients(change: Change) -> None:
    loss, found = gradients(change)
    expected_loss, expected = gradients(Change())
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=0)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        unit = expected[name].abs().max() / 2**7  # of bf16, which rounds what the chunks add in another order
        bound = 2 * unit if change.fused else unit if change.rows else 0  # the fused loss rounds its logits, too
        assert (gradient - expected[name]).abs().max() <= bound, name


def test_small_chunks_add_up_to_the_whole_loss() -> None:
    torch.manual_seed(1)
    x, weight = (torch.randn(rows, 8, requires_grad=True) for rows in (21, 30))
    target = torch.randint(30, (21,)).index_fill(0, torch.tensor([3, 20]), -100)
    whole = nn.functional.cross_entropy(x @ weight.T, target)
    parts = large_models_activations.loss_in_chunks(x, weight, target, 4)
    torch.testing.assert_close(parts, whole)
    for found, expected in zip(*(torch.autograd.grad(loss, (x, weight)) for loss in (parts, whole)), strict=True):
        torch.testing.assert_close(found, expected)
