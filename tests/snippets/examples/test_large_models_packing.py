"""Packed documents have the loss of padded ones."""

import pytest
import torch

from snippets.examples import large_models_activations, large_models_packing
from snippets.examples.large_models_change import Change
from tests.snippets.examples.test_large_models_shape import SHAPE, model


def test_packed_documents_have_the_loss_of_padded_ones() -> None:
    documents = [torch.arange(n) * 7 % SHAPE.words for n in (5, 17, 9, 12)]
    loss_of = large_models_activations.changed(model(), Change())
    together = large_models_packing.packed(documents, 24)
    assert together["tokens"].shape == (2, 22) and together["position_ids"].max() == 16
    apart = large_models_packing.padded(documents)
    assert (together["labels"] != -100).sum() == sum(map(len, documents)) - len(documents)
    torch.testing.assert_close(loss_of(**together), loss_of(**apart), rtol=3e-3, atol=0)
    merged = loss_of(together["tokens"], together["labels"])  # documents see each other
    assert abs(merged - loss_of(**apart)) > abs(loss_of(**together) - loss_of(**apart)) * 3


def test_a_document_longer_than_a_row_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="length: expected at least 9") as caught:
        large_models_packing.packed([torch.arange(9)], 8)
    assert "\n" not in str(caught.value)
