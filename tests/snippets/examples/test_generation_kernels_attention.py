"""The kernel's attention is the plain one, in parts of several blocks."""

import pytest
import torch

from snippets.examples.generation_kernels import Attention
from snippets.examples.generation_step import attended
from tests.snippets.examples.test_generation import HERE


@pytest.mark.parametrize("position", (300, 511))
def test_parts_of_several_blocks_and_none_of_them_empty(position: int) -> None:
    torch.manual_seed(0)
    q, keys, values = (torch.randn(*s, device=HERE) for s in ((1, 4, 32), (1, 2, 512, 32), (1, 2, 512, 32)))
    hidden = torch.arange(512, device=HERE) > position
    qkv = torch.cat((q[0], keys[0, :, position], values[0, :, position])).flatten()
    cos, sin = torch.ones(512, 32, device=HERE), torch.zeros(512, 32, device=HERE)
    at, fast = torch.tensor([position], device=HERE), Attention(4, 2, 32, 512, HERE, splits=2)
    for _ in range(3):  # the count of parts begins anew in each call
        out = fast(qkv, cos, sin, keys[0].clone(), values[0].clone(), at, torch.empty_like(q).flatten())
        torch.testing.assert_close(out[None], attended(q, keys, values, hidden[None]), rtol=1e-4, atol=1e-4)
        fast.parts.fill_(torch.nan)
