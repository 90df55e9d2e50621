"""A step that does not fit is said."""

import pytest
import torch

from snippets.examples import large_models_measure
from snippets.examples.large_models_change import Change
from tests.snippets.examples.test_large_models_shape import TOKENS, model


def test_a_step_that_does_not_fit_is_said_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(large_models_measure, "seconds", full)
    assert large_models_measure.tried(model(), TOKENS, Change(release=True)) == "out of memory"
    assert all(p.grad is None and not p._post_accumulate_grad_hooks for p in model().parameters())
