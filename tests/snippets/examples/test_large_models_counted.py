"""Each part by hand is as counted."""

import functools
from unittest import mock

import pytest
import torch

from snippets.examples import large_models_activations, large_models_counted, large_models_moments
from snippets.examples.large_models_change import Change
from snippets.examples.large_models_shape import SMALL
from tests.snippets.examples.test_large_models_shape import SHAPE, TOKENS, model


@pytest.mark.parametrize("rows", [4, 2], ids=["any shape", "a weight's shape"])
def test_each_part_is_predicted_to_the_byte_or_nearly(rows: int) -> None:
    tokens = TOKENS.repeat(1, 2)[:rows, : 48 if rows == 4 else 64]
    plain, count = Change(), tokens.numel()
    assert (count == SMALL["intermediate_size"]) == (rows == 2)
    found = large_models_counted.counted(model(), lambda: large_models_activations.changed(model(), plain)(tokens))
    by_hand = large_models_moments.moments(SHAPE, count, plain)
    kept = by_hand["loss, backward"]
    assert SHAPE.parameters == sum(p.numel() for p in model().parameters())
    assert found["copies"] == kept["copies"] and found["loss"] == 4 * count * SHAPE.words
    assert found["activations"] == pytest.approx(kept["activations"], rel=0.02)  # beside tokens and rotary tables
    assert by_hand["optimizer"]["gradients"] == sum(p.nbytes for p in model().parameters())


def test_what_was_counted_is_freed() -> None:
    """Also the result of an operation that keeps it for its own backward."""
    results = []

    def forward() -> torch.Tensor:
        result = model().lm_head.weight.exp()
        results.append(result.untyped_storage()._weak_ref())
        return result

    assert sum(large_models_counted.counted(model(), forward).values())
    assert torch.UntypedStorage._expired(results[0])


@pytest.mark.parametrize("budget", [1.0, 0.9])
def test_what_compiled_blocks_keep_is_predicted(budget: float) -> None:
    """By the compiler's cut alone: code is not generated."""
    cut = functools.partial(torch.compile, backend="aot_eager_decomp_partition")
    torch.compiler.reset()
    with mock.patch.object(torch, "compile", cut), torch._functorch.config.patch(activation_memory_budget=budget):
        loss_of = large_models_activations.changed(model(), Change(budget=budget))
        found = large_models_counted.counted(model(), lambda: loss_of(TOKENS))
    torch.compiler.reset()
    kept = large_models_moments.moments(SHAPE, TOKENS.numel(), Change(budget=budget))["loss, backward"]
    both = ("copies", "activations")  # this compiler keeps a copy as it is, and not transposed
    assert sum(found[part] for part in both) == pytest.approx(sum(kept[part] for part in both), rel=0.02)
