"""Which of SDPA's kernels take a padding mask: each refuses, or is right or wrong at real tokens."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from snippets.patterns.attention_padding_masks import as_float, formula, make_mask
from snippets.patterns.attention_padding_varlen import Packing, make_packing, pack, spread_lengths

ROWS, TOKENS, HEADS, SIZE = 8, 2048, 16, 128


class Batch(NamedTuple):
    """Random q, k and v of rows that differ in length; the lengths on the host, and on the GPU."""

    inputs: list[Tensor]
    on_the_host: Tensor
    lengths: Tensor
    packing: Packing


def make_batch(rows: int, tokens: int, heads: int, size: int, device: torch.device) -> Batch:
    """In bf16."""
    lengths = spread_lengths(rows, tokens)
    inputs = [torch.randn(rows, tokens, heads, size, device=device).bfloat16() for _ in range(3)]
    return Batch(inputs, lengths, lengths.to(device), make_packing(lengths, tokens, device))


# --8<-- [start:takes]
def verdict(backend: SDPBackend, batch: Batch, expected: Tensor, **how: object) -> str:
    """What this kernel of SDPA does if no other may run: refuses, or is right or wrong at real tokens."""
    leaves = [t.transpose(1, 2).detach().requires_grad_() for t in batch.inputs]
    try:
        with sdpa_kernel(backend):
            output = F.scaled_dot_product_attention(*leaves, **how)
            output.sum().backward()
    except RuntimeError:
        return "refused"
    off = pack(output.transpose(1, 2), batch.packing) - expected
    return "right" if off.abs().max() < 0.1 else "wrong"  # bf16 rounds by less, another mask changes more


# --8<-- [end:takes]


def show_takes(batch: Batch) -> None:
    """For rows that are causal: each of SDPA's kernels, and four ways to say so."""
    padding, mask = (make_mask(batch.lengths, TOKENS, causal) for causal in (False, True))
    expected = pack(formula(*batch.inputs, mask), batch.packing)
    given: dict[str, dict[str, object]] = {
        "is_causal": {"is_causal": True},
        "boolean mask": {"attn_mask": mask},
        "float mask": {"attn_mask": as_float(mask, batch.inputs[0].dtype)},
        "is_causal and a padding mask": {"attn_mask": padding, "is_causal": True},
    }
    print(" " * 20 + "".join(f"    {name}" for name in given))
    for backend in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH"):
        found = {name: verdict(getattr(SDPBackend, backend), batch, expected, **how) for name, how in given.items()}
        print(f"{backend:<20}" + "".join(said.rjust(len(name) + 4) for name, said in found.items()))
