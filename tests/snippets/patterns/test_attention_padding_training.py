"""Padded or packed, a training step has one loss, which is that of each row alone."""

import pytest
import torch
import torch.nn.functional as F

from snippets.patterns import attention_padding_varlen
from snippets.patterns.attention_padding_masks import causal_only
from snippets.patterns.attention_padding_training import Model, collate, gradients, packed_loss, padded_loss
from tests.snippets.patterns.test_attention_padding import in_its_place

CPU = torch.device("cpu")


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(attention_padding_varlen, "varlen_attn", in_its_place)
    torch.manual_seed(0)
    rows = [torch.randint(50, (length,)) for length in (12, 2, 7)]
    return Model(width=32, heads=2, vocabulary=50, longest=16).double(), rows


def alone(model, rows):
    """The mean over all tokens that have a next one, each row by itself."""
    losses = []
    for row in rows:
        logits = model(row[None, :-1], torch.arange(len(row) - 1), causal_only)
        losses.append(F.cross_entropy(logits[0], row[1:], reduction="sum"))
    return torch.stack(losses).sum() / sum(len(row) - 1 for row in rows)


@pytest.mark.parametrize("loss_of", [padded_loss, packed_loss])
def test_the_loss_and_its_gradients_are_those_of_rows_alone(made, loss_of) -> None:
    model, rows = made
    exact, loss = alone(model, rows), loss_of(model, *collate(rows), CPU)
    torch.testing.assert_close(loss, exact, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(model, loss), gradients(model, exact), rtol=1e-10, atol=1e-12)


def test_padding_stands_behind() -> None:
    batch, lengths = collate([torch.tensor([3]), torch.tensor([4, 5])])
    assert batch.tolist() == [[3, 0], [4, 5]]
    assert lengths.tolist() == [1, 2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there it shows losses")
def test_a_cpu_is_told(script) -> None:
    assert script("snippets.patterns.attention_padding_training").stdout == "varlen_attn needs a GPU\n"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="varlen_attn needs a GPU")
def test_on_a_gpu_both_agree(script) -> None:
    padded, packed, apart = script("snippets.patterns.attention_padding_training").stdout.splitlines()
    assert abs(float(padded.split()[-1]) - float(packed.split()[-1])) < 0.02
    assert float(apart.split(" by ")[1].split()[0]) < 0.05
