"""Steps with a change move the weights as AdamW does."""

import pytest
import torch
from torch import Tensor

from snippets.examples import large_models_activations, large_models_step
from snippets.examples.large_models_change import Change
from tests.snippets.examples.test_large_models_shape import TOKENS, model


def stepped(change: Change, steps: int = 3) -> list[Tensor]:
    """The weights after some steps, from the same start."""
    before = [p.detach().clone() for p in model().parameters()]
    try:
        with large_models_step.trained(model(), change) as (step, _):
            for _ in range(steps):
                step(TOKENS)
        return [p.detach().clone() for p in model().parameters()]
    finally:
        with torch.no_grad():
            for p, start in zip(model().parameters(), before, strict=True):
                p.copy_(start)


@pytest.mark.parametrize(
    ("change", "bound"),
    [
        (Change(release=True), 0.0),
        (Change(states="CPU"), 1e-3),
        (Change(states="CPU", release=True), 1e-3),
        (Change(states="bf16"), 0.02),
    ],
    ids=str,
)
def test_the_weights_move_as_with_adamw(change: Change, bound: float) -> None:
    """Distance by distance moved: of single weights with a gradient near zero, rounding decides."""
    start = torch.cat([p.detach().flatten() for p in model().parameters()])
    found, expected = (torch.cat([p.flatten() for p in stepped(each)]) for each in (change, Change()))
    moved = (expected - start).norm()
    assert moved > 0 and (found - expected).norm() <= bound * moved


def test_released_gradients_are_gone_and_hooks_come_off() -> None:
    with large_models_step.trained(model(), Change(release=True)) as (step, _):
        step(TOKENS)
        assert all(p.grad is None for p in model().parameters())
    large_models_activations.changed(model(), Change())(TOKENS).backward()
    assert all(p.grad is not None for p in model().parameters())
    model().zero_grad()
