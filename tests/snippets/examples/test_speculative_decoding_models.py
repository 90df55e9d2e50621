"""What the byte models are trained on, that they learn, and what a copy keeps."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import speculative_decoding_models
from snippets.examples.generation import TINY, make_model
from tests.snippets.examples.test_generation import HERE, model


def pieces() -> Tensor:
    return torch.randint(256, (2, 12), generator=torch.Generator().manual_seed(3)).to(HERE)


def test_no_held_out_file_is_trained_on() -> None:
    text, files = speculative_decoding_models.texts()
    assert len(text) > 15 * sum(map(len, files)) > 0
    assert not any(file in text for file in files if len(file) > 2000)
    assert b"import unittest" in text  # the library's own modules, but not its tests
    assert b"class TestSFpatches(" not in text


def test_held_out_pieces_come_from_the_middle_and_too_few_are_refused() -> None:
    files = [bytes(range(8)), b"short", bytes(range(100, 120))]
    assert speculative_decoding_models.held_out(files, 2, 4).tolist() == [[4, 5, 6, 7], [110, 111, 112, 113]]
    with pytest.raises(ValueError, match="held-out files: expected 3 of 8 bytes or more, got 2"):
        speculative_decoding_models.held_out(files, 3, 4)


def test_training_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that is looked at twice a step."""
    plan, clock = speculative_decoding_models.PLANS["cpu"], itertools.count()
    monkeypatch.setattr(speculative_decoding_models, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    torch.manual_seed(0)
    sizes = TINY | {"num_hidden_layers": 1}
    before = speculative_decoding_models.bits(
        make_model(sizes, HERE, torch.float32).eval(), speculative_decoding_models.held_out([b"ab" * 64], 1, 64)
    )
    found, steps = speculative_decoding_models.trained(sizes, b"ab" * 500, plan, limit=30)
    assert steps == 16
    assert (
        speculative_decoding_models.bits(found, speculative_decoding_models.held_out([b"ab" * 64], 1, 64))
        < 0.8 * before
    )


def test_a_model_that_knows_nothing_needs_eight_bits_a_byte() -> None:
    blank = speculative_decoding_models.copied(model(), TINY, torch.float32)
    blank.lm_head.weight.data.zero_()
    assert speculative_decoding_models.bits(blank, pieces()) == pytest.approx(8)


def test_a_copy_has_the_same_weights_and_exact_angles() -> None:
    found = speculative_decoding_models.copied(model(), TINY, torch.bfloat16)
    for name, weight in found.named_parameters():
        torch.testing.assert_close(weight, model().get_parameter(name).bfloat16(), rtol=0, atol=0)
    assert found.model.rotary_emb.inv_freq.dtype == torch.float32
