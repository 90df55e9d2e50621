"""Padding is refused where attention would not know of it."""

import pytest
import torch

from snippets.examples import llama_causal, llama_kernels, llama_model
from tests.snippets.examples.test_llama_model import model, tokens


def test_padding_is_refused_where_attention_would_not_know_of_it() -> None:
    padded = torch.ones_like(tokens())
    padded[:, :4] = 0
    for change in (llama_causal.say_causal, llama_kernels.kernels_swapped):
        changed = llama_model.sharing(model())
        change(changed)
        with pytest.raises(ValueError, match="attention_mask: expected none"):
            changed(input_ids=tokens(), attention_mask=padded)
