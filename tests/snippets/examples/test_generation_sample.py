"""Tokens are drawn as often as they are likely."""

import pytest
import torch

from snippets.examples.generation_sample import sample

LOGITS = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()


@pytest.mark.parametrize(
    ("options", "possible"),
    (
        ({}, 4),
        ({"top_k": 2}, 2),
        ({"top_p": 0.5}, 1),
        ({"top_p": 0.6}, 2),
        ({"top_p": 0.0}, 1),
        ({"top_k": 3, "top_p": 0.99}, 3),
    ),
)
def test_tokens_are_drawn_as_often_as_they_are_likely(options: dict, possible: int) -> None:
    torch.manual_seed(0)
    drawn = sample(LOGITS.expand(20000, 4), temperature=1.0, **options).bincount(minlength=4) / 20000
    p = LOGITS.exp()[:possible]
    torch.testing.assert_close(drawn, torch.cat((p / p.sum(), torch.zeros(4 - possible))), rtol=0, atol=0.015)
