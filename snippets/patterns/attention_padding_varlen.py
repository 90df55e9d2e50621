"""Attention over packed rows, by `varlen_attn` or as a nested tensor."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from snippets.patterns.attention_padding_masks import real_tokens


# --8<-- [start:packing]
class Packing(NamedTuple):
    """Where the rows of a batch stand if their real tokens are laid one after the other."""

    index: Tensor  # of each real token in the batch with padding, seen as rows * tokens tokens
    offsets: Tensor  # where each row begins, and where the last one ends: int32, rows + 1
    shortest: int
    longest: int


def make_packing(lengths: Tensor, tokens: int, device: torch.device) -> Packing:
    """`lengths` is on the CPU, where the batch was made, so that nothing waits for the GPU."""
    index = real_tokens(lengths, tokens).flatten().nonzero().squeeze(1)
    offsets = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    return Packing(index.to(device), offsets.to(device), int(lengths.min()), int(lengths.max()))


def pack(t: Tensor, packing: Packing) -> Tensor:
    """(rows, tokens, ...) without its padding: (real tokens, ...)."""
    return t.flatten(0, 1)[packing.index]


def unpack(t: Tensor, packing: Packing, rows: int, tokens: int) -> Tensor:
    """The way back, with zeros as padding."""
    padded = t.new_zeros(rows * tokens, *t.shape[1:])
    return padded.index_copy(0, packing.index, t).unflatten(0, (rows, tokens))


# --8<-- [end:packing]


# --8<-- [start:varlen]
def variable_length(q: Tensor, k: Tensor, v: Tensor, packing: Packing, causal: bool) -> Tensor:
    """On a GPU, in bf16 or fp16; from torch 2.11 (torch 2.10 has `is_causal` in the place of the window)."""
    window = (-1, 0) if causal else (-1, -1)  # how many tokens a query sees before and after itself; -1 is all
    at, longest = packing.offsets, packing.longest
    return varlen_attn(q, k, v, at, at, longest, longest, window_size=window)


# --8<-- [end:varlen]


# --8<-- [start:around]
def packed_inside(q: Tensor, k: Tensor, v: Tensor, packing: Packing, causal: bool) -> Tensor:
    """For a model that is padded elsewhere: q, k and v are packed, and the result gets its padding back."""
    result = variable_length(*(pack(t, packing) for t in (q, k, v)), packing, causal)
    return unpack(result, packing, *q.shape[:2])


# --8<-- [end:around]


# --8<-- [start:nested]
def nested(q: Tensor, k: Tensor, v: Tensor, packing: Packing, causal: bool) -> Tensor:
    """The packed rows as one nested tensor, which SDPA takes: (rows, heads, length of each row, size)."""

    def as_rows(t: Tensor) -> Tensor:
        between = {"min_seqlen": packing.shortest, "max_seqlen": packing.longest}  # else it asks the GPU
        return torch.nested.nested_tensor_from_jagged(t, packing.offsets, **between).transpose(1, 2)

    result = F.scaled_dot_product_attention(as_rows(q), as_rows(k), as_rows(v), is_causal=causal)
    return result.transpose(1, 2).values()


# --8<-- [end:nested]


def spread_lengths(rows: int, tokens: int) -> Tensor:
    """Evenly spread from nothing to the longest, which fills its row, and in no order: half of all tokens are real."""
    spread = [round(tokens * (5 * row % rows + 0.45) / rows) for row in range(rows)]
    return torch.tensor([tokens if length == max(spread) else length for length in spread])
