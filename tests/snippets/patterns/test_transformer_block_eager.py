"""The native block is causal, and what it adds is as large as what comes in."""

import torch

from snippets.patterns import transformer_block as blocks
from snippets.patterns.transformer_block_eager import native
from tests.snippets.patterns.test_transformer_block import DEVICE


def test_what_the_block_adds_is_about_as_large_as_what_comes_in() -> None:
    """So that an error of a part shows in the result."""
    torch.manual_seed(0)
    inputs = blocks.block_inputs((2, 64, 512), torch.float32, DEVICE)
    added = native()(*inputs.values()) - inputs["x"]
    assert 0.5 < (added.std() / inputs["x"].std()).item() < 4


def test_the_block_is_causal() -> None:
    inputs = blocks.block_inputs((1, 16, 256), torch.float32, DEVICE)
    before = native()(*inputs.values())
    inputs["x"][:, 8:] += 1
    after = native()(*inputs.values())
    torch.testing.assert_close(after[:, :8], before[:, :8])
    assert (after[:, 8:] - before[:, 8:]).abs().max() > 0.1
