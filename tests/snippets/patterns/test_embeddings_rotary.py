"""The rotation keeps lengths, and turns queries and keys by the distance between them."""

import torch

from snippets.patterns.embeddings_rotary import heads, rotary_native


def test_lengths_stay_and_scores_depend_on_the_distance_alone() -> None:
    torch.manual_seed(0)
    given = heads((1, 6, 1, 1, 32), torch.float64, torch.device("cpu"))
    given["q"], given["k"] = (given[name][:, :, :1].expand_as(given[name]) for name in "qk")
    q, k = rotary_native(**given)
    torch.testing.assert_close(q.norm(dim=-1), given["q"].norm(dim=-1), rtol=1e-4, atol=1e-4)
    scores = (q @ k.mT)[0, 0]
    torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1], rtol=1e-3, atol=1e-3)
    assert (scores[0] - scores[0, 0]).abs().max() > 0.1
