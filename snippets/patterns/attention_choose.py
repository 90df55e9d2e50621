"""One kernel for one mask: the calls that the page compares."""

import re
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn

# Everywhere q is (rows, heads, queries, size), and k and v are (rows, heads, keys, size), or have fewer heads.
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


# --8<-- [start:only]
def only(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, **how: object) -> Tensor:
    """SDPA by this backend, or an error."""
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, **how)


# --8<-- [end:only]


# --8<-- [start:packed]
class Row(NamedTuple):
    """Where documents begin in a row of all tokens, and how long the longest is."""

    offsets: Tensor  # int32, one more than documents
    longest: int


def make_row(lengths: list[int], device: torch.device | str) -> Row:
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return Row(offsets.to(device), max(lengths))


def packed(q: Tensor, k: Tensor, v: Tensor, row: Row, width: int = 0) -> Tensor:
    """Documents of one row, causal, by `varlen_attn`: with a window of `width` tokens, if it is given."""
    q, k, v = (t.transpose(1, 2).flatten(0, 1) for t in (q, k, v))  # (all tokens, heads, size)
    sees = (width - 1, 0) if width else (-1, 0)  # keys before the token, and behind it; -1 is all
    result = varlen_attn(q, k, v, row.offsets, row.offsets, row.longest, row.longest, window_size=sees)
    return result.unflatten(0, (1, -1)).transpose(1, 2)


# --8<-- [end:packed]


# --8<-- [start:nested]
def nested(q: Tensor, k: Tensor, v: Tensor, row: Row, shortest: int) -> Tensor:
    """The same documents as a nested tensor."""

    def as_documents(t: Tensor) -> Tensor:
        between = {"min_seqlen": shortest, "max_seqlen": row.longest}  # else it asks the GPU
        tokens = t.transpose(1, 2).flatten(0, 1)
        return torch.nested.nested_tensor_from_jagged(tokens, row.offsets, **between).transpose(1, 2)

    result = F.scaled_dot_product_attention(as_documents(q), as_documents(k), as_documents(v), is_causal=True)
    return result.transpose(1, 2).values().unflatten(0, (1, -1)).transpose(1, 2)


# --8<-- [end:nested]


# --8<-- [start:learned]
def learned(table: Tensor, cap: float) -> Callable[..., Tensor]:
    """A `score_mod`: `table` is (heads, 2 * tokens - 1), a bias for each distance from 1 - tokens to tokens - 1."""
    zero = table.shape[1] // 2  # where the bias of distance 0 is

    def change(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return cap * torch.tanh((score + table[head, query - key + zero]) / cap)

    return change


# --8<-- [end:learned]


# --8<-- [start:repeated]
def repeated(q: Tensor, k: Tensor, v: Tensor, **how: object) -> Tensor:
    """Grouped queries for a kernel that does not know them: each head of k and v is copied for those that read it."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, **how)


# --8<-- [end:repeated]


# --8<-- [start:filled]
def filled_part(q: Tensor, k: Tensor, v: Tensor, filled: int) -> Tensor:
    """Decode where all rows are equally long, and the host knows how long: a view of what is filled, and no mask."""
    k, v = k[:, :, :filled], v[:, :, :filled]
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])


# --8<-- [end:filled]


def spread(tokens: int, number: int) -> list[int]:
    """Lengths of documents that fill a row: from short to three times as long as that, in no order."""
    shares = [1 + 2 * (5 * n % number) / number for n in range(number)]
    lengths = [max(1, round(tokens * share / sum(shares))) for share in shares]
    lengths[-1] += tokens - sum(lengths)
    return lengths


# ---- which kernel runs ----------------------------------------------------------------------------------------------


# --8<-- [start:why]
def why_not(call: Callable[[], Tensor], expected: Tensor) -> str:
    """What a call does, forward and backward: right or wrong, or why it is refused."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            output = call()
            output.float().sum().backward()
        except (RuntimeError, NotImplementedError) as error:
            said = [re.split(r"\. | \(Triggered", str(one.message))[0] for one in caught]
            named = [line for line in said if not line.endswith("because:") and "runtime disabled" not in line]
            return (named or [str(error).splitlines()[0]])[0]
    return "right" if (output - expected).abs().max() < 0.1 else "wrong"  # bf16 rounds by less


# --8<-- [end:why]
