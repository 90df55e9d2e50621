"""Attention by PyTorch's functions is the written-out one."""

import pytest
import torch

from snippets.examples import generation_attention, generation_step
from tests.snippets.examples.test_generation import HERE


@pytest.mark.parametrize("other", ("sdpa", "flex"))
def test_attention_by_pytorch_s_functions(other: str) -> None:
    torch.manual_seed(0)
    q, keys, values = (torch.randn(*shape, device=HERE) for shape in ((3, 4, 16), (3, 2, 128, 16), (3, 2, 128, 16)))
    positions = torch.tensor([0, 60, 127], device=HERE)
    hidden = torch.arange(128, device=HERE) > positions[:, None]
    by = (
        generation_attention.by_sdpa(q, keys, values, hidden)
        if other == "sdpa"
        else generation_attention.by_flex(q, keys, values, positions)()
    )
    torch.testing.assert_close(by, generation_step.attended(q, keys, values, hidden), rtol=1e-3, atol=1e-4)
