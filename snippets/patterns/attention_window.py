"""A sliding window in training by FlexAttention: `python -m snippets.patterns.attention_window`."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

# --8<-- [start:window]
attend = torch.compile(flex_attention, dynamic=False)  # once; without it the formula runs, with all scores in memory


def make_window(tokens: int, width: int, device: torch.device) -> BlockMask:
    """Each token sees itself and the width - 1 before it. Once for a length, for all rows, heads and layers."""

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query - key < width)

    return create_block_mask(sees, None, None, tokens, tokens, device=device)


def windowed(q: Tensor, k: Tensor, v: Tensor, blocks: BlockMask, attend: Callable = attend) -> Tensor:
    """q, k and v are (rows, heads, tokens, size), as for SDPA."""
    return attend(q, k, v, block_mask=blocks)


# --8<-- [end:window]


def make_mask(tokens: int, width: int, device: torch.device) -> Tensor:
    """The same as data: (tokens, tokens), True where a query sees a key."""
    ones = torch.ones(tokens, tokens, dtype=torch.bool, device=device)
    return ones.tril() & ~ones.tril(-width)


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokens, width = 512, 100
    q, k, v = (torch.randn(2, 4, tokens, 64, device=device) for _ in range(3))  # rows, heads, tokens, size
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=make_mask(tokens, width, device))
    blocks = make_window(tokens, width, device)
    how = attend if device.type == "cuda" else flex_attention  # compiled for a CPU it wants AVX2, and has no backward
    y = windowed(q, k, v, blocks, how)
    print(f"apart from SDPA with the mask by {(y - expected).abs().max().item():.0e}")
    print(f"blocks left out: {blocks.sparsity():.0f}%")


if __name__ == "__main__":
    main()
