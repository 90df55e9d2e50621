"""One kernel for one mask: the calls that the page compares."""

import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn

from snippets.patterns.attention_masks import (
    Rule,
    alibi_bias,
    causal,
    dense,
    documents,
    formula,
    real_keys,
    slopes,
    window,
)

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


# From here on an older form of attention_choose_backends, in which ALiBi's bias has a dimension too many. It goes when
# this file is timed again: all of it counts for whether the published times are those of this code.
def masks(tokens: int, heads: int, device: torch.device) -> dict[str, tuple[Rule, int, dict[str, object]]]:
    """By name: the rule, heads of k and v, and how SDPA is told."""

    def as_mask(rule: Rule, rows: int = 2) -> dict[str, object]:
        return {"attn_mask": dense(rule, rows, tokens, tokens, device)}

    document = torch.arange(tokens, device=device)[None].expand(2, -1) // 100
    lengths = torch.tensor([tokens, tokens // 3], device=device)
    bias = alibi_bias(slopes(heads, device), dense(causal, 1, tokens, tokens, device), torch.bfloat16)
    grouped = {"enable_gqa": True, "is_causal": True}
    return {
        "causal, flag": (causal, heads, {"is_causal": True}),
        "causal, mask": (causal, heads, as_mask(causal)),
        "window, mask": (window(64), heads, as_mask(window(64))),
        "ALiBi, bias": (causal, heads, {"attn_mask": bias[None]}),
        "documents, mask": (documents(document), heads, as_mask(documents(document))),
        "cross-attention, a row of keys": (real_keys(lengths), heads, as_mask(real_keys(lengths))),
        "grouped, flag": (causal, heads // 4, grouped),
        "grouped, mask": (causal, heads // 4, as_mask(causal) | {"enable_gqa": True}),
    }


def show_refusals(device: torch.device) -> None:
    """Two rows of 512 tokens, 8 heads of 128, in bf16; SDPA alone, and each backend and no other."""
    tokens, heads = 512, 8
    backends = {"all allowed": None} | BACKENDS
    for name, (rule, kv_heads, how) in masks(tokens, heads, device).items():
        print(name)
        shapes = ((2, tokens, n, 128) for n in (heads, kv_heads, kv_heads))
        leaves = [torch.randn(shape, device=device).bfloat16().transpose(1, 2).requires_grad_() for shape in shapes]
        bias = how["attn_mask"] if "bias" in name else None
        expected = formula(*leaves, mask=dense(rule, 2, tokens, tokens, device), bias=bias).detach()
        for allowed, backend in backends.items():
            call = partial(
                F.scaled_dot_product_attention if backend is None else partial(only, backend), *leaves, **how
            )
            print(f"  {allowed:<14}{why_not(call, expected)}")


def main() -> None:
    if not torch.cuda.is_available():
        print("a CPU has none of these kernels: run this on a GPU")
        return
    torch.manual_seed(0)
    print("==== refuses")
    show_refusals(torch.device("cuda"))


if __name__ == "__main__":
    main()
