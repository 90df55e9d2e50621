"""Chunks are the window, without a square of scores."""

import pytest
import torch

from snippets.patterns.attention_masks_agreement import inputs
from snippets.patterns.attention_masks_local import in_chunks
from snippets.patterns.attention_masks_rules import dense, formula, window
from snippets.patterns.attention_watch import Watch


@pytest.mark.parametrize(("tokens", "width"), [(8, 8), (12, 4), (6, 1)])
def test_chunks_are_the_window_with_their_gradients(tokens: int, width: int) -> None:
    torch.manual_seed(0)
    leaves = [t.requires_grad_() for t in inputs(tokens, tokens)]
    incoming = torch.randn(leaves[0].shape).double()
    mask = dense(window(width), 1, tokens, tokens)
    results = []
    for output in (in_chunks(*leaves, width), formula(*leaves, mask)):
        results.append((output, *torch.autograd.grad(output, leaves, incoming)))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected)


def test_chunks_never_hold_a_square() -> None:
    q, k, v = (torch.zeros(1, 1, 4096, 8) for _ in range(3))
    with Watch() as watch:
        in_chunks(q, k, v, 64)
    assert watch.largest <= 4096 * 2 * 64 * torch.int64.itemsize  # while the mask is made
