"""A BERT-like step: only real tokens are hidden, the loss is that of rows alone, and nothing sees padding."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from snippets.patterns import attention_padding_bert as page
from snippets.patterns.attention_padding_masks import formula, make_mask
from snippets.patterns.attention_padding_training import Model, collate, gradients

LENGTHS = (12, 3, 7)


@pytest.fixture
def made() -> tuple[Model, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = Model(width=32, heads=2, vocabulary=50, longest=16).double()
    return model, *collate([torch.randint(1, 50, (length,)) for length in LENGTHS])


def by_the_formula(q, k, v, block_mask):
    """In the place of flex_attention, which has no backward on a CPU."""
    t = (each.transpose(1, 2) for each in (q, k, v))
    return formula(*t, make_mask(torch.tensor(LENGTHS), q.shape[2], causal=False)).transpose(1, 2)


def alone(model: Model, batch: torch.Tensor, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """The mean over hidden tokens, each row by itself and as long as it is."""
    losses = []
    for row, length in enumerate(LENGTHS):
        whole = torch.ones(1, 1, 1, length, dtype=torch.bool)
        logits = model(tokens[row : row + 1, :length], torch.arange(length), partial(formula, mask=whole))
        losses.append(F.cross_entropy(logits[0], batch[row, :length], reduction="none")[hidden[row, :length]])
    return torch.cat(losses).mean()


def test_a_share_of_the_real_tokens_is_hidden_and_no_padding() -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([1000, 10])
    batch = torch.full((2, 1000), 7)
    tokens, hidden = page.hide(batch, lengths, share=0.15)
    assert not hidden[1, 10:].any() and 100 < hidden[0].sum() < 200
    assert (tokens[hidden] == page.HIDDEN).all() and (tokens[~hidden] == 7).all()


def test_the_loss_and_its_gradients_are_those_of_rows_alone(made) -> None:
    model, batch, lengths = made
    torch.manual_seed(1)
    loss = page.hidden_loss(model, batch, lengths, attend=by_the_formula)
    torch.manual_seed(1)
    exact = alone(model, batch, *page.hide(batch, lengths))
    torch.testing.assert_close(loss, exact, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(model, loss), gradients(model, exact), rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_flex_attention_gives_this_loss_and_does_not_see_padding(made) -> None:
    model, batch, lengths = made
    losses = []
    for padding in (0, 33):
        torch.manual_seed(1)
        real = torch.arange(batch.shape[1]) < lengths[:, None]
        losses.append(page.hidden_loss(model, batch.masked_fill(~real, padding), lengths))
    torch.manual_seed(1)
    torch.testing.assert_close(losses[0], alone(model, batch, *page.hide(batch, lengths)), rtol=1e-6, atol=1e-6)
    assert losses[0] == losses[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there it trains")
def test_on_a_cpu_both_ways_print_one_loss(script) -> None:
    first, second = (
        line.split()[-1] for line in script("snippets.patterns.attention_padding_bert").stdout.splitlines()
    )
    assert first == second and float(first) > 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="FlexAttention has no backward on a CPU")
def test_on_a_gpu_it_learns(script) -> None:
    losses = [
        float(line.split()[-1]) for line in script("snippets.patterns.attention_padding_bert").stdout.splitlines()
    ]
    assert losses[0] > 5 and losses == sorted(losses, reverse=True) and losses[-1] < 0.7 * losses[0]
