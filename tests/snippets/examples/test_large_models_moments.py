"""Peaks by hand are those counted, on a CPU."""

from dataclasses import replace

import pytest
import torch

from snippets.examples import large_models_measure, large_models_moments, large_models_shape, large_models_step
from snippets.examples.large_models_change import EACH
from snippets.examples.large_models_shape import SMALL
from snippets.examples.llama_model import make_model
from snippets.validation.memory import allocated, peak_of
from tests.snippets.examples.test_large_models_shape import SHAPE, TOKENS, model


@pytest.mark.parametrize("name", ["as it comes", "bf16 states", "gradients released", "loss in chunks", "loss fused"])
def test_peaks_by_hand_are_those_counted(name: str) -> None:
    """A tiny model's temporaries weigh more than a large one's: within a tenth."""
    peak = large_models_measure.measured(model(), TOKENS, EACH[name]).peak
    assert large_models_moments.predicted(SHAPE, TOKENS.numel(), EACH[name])[1] == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["as it comes", "loss in chunks", "checkpoints, chunks", "and no autocast cache"])
def test_peaks_by_hand_are_those_of_the_allocator(name: str, tied: bool) -> None:
    """Many words, as in a Llama: the sums of lm_head's gradient weigh most. A count of tensors has one sum too many."""
    sizes = SMALL | {"vocab_size": 16384, "hidden_size": 128, "tie_word_embeddings": tied}
    s, change = large_models_shape.shape_of(sizes), EACH[name]
    change = replace(change, rows=min(change.rows, 64))
    many = make_model(sizes, torch.device("cpu"), torch.float32)
    tokens = torch.randint(s.words, (4, 96))
    with large_models_step.trained(many, change) as (step, _):
        step(tokens)
        found = peak_of(allocated(lambda: step(tokens))).nbytes + 12 * s.parameters  # weights and states are there
    assert large_models_moments.predicted(s, tokens.numel(), change)[1] == pytest.approx(found, rel=0.01)
