"""Attention of one token by PyTorch's own functions."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


# --8<-- [start:attention]
def by_sdpa(q: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
    """`attended` of generation_step.py by PyTorch's own function, which takes the mask of places that may be seen."""
    seen = ~hidden[:, None, None]
    return F.scaled_dot_product_attention(q[:, :, None], keys, values, attn_mask=seen, enable_gqa=True).flatten(1)


def by_flex(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Callable[[], Tensor]:
    """The same by FlexAttention, which skips blocks of hidden places. Their list is made once, before any call."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def seen(slot: Tensor, head: Tensor, query: Tensor, place: Tensor) -> Tensor:
        return place <= positions[slot]

    mask = create_block_mask(seen, len(q), None, 1, keys.shape[2], device=q.device.type)
    fast = torch.compile(flex_attention, dynamic=False)
    return lambda: fast(q[:, :, None], keys, values, block_mask=mask, enable_gqa=True).flatten(1)


# --8<-- [end:attention]
