"""What is rounded: factors, sums, small gradients and small updates."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


# --8<-- [start:rounding]
def in_tf32(x: Tensor) -> Tensor:
    """fp32 numbers rounded to the 10 bits of a TF32 fraction: what tensor cores read."""
    bits = x.view(torch.int32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32)


ROUNDED: dict[str, Callable[[Tensor], Tensor]] = {
    "tf32": in_tf32,
    "fp16": lambda x: x.half().float(),
    "bf16": lambda x: x.bfloat16().float(),
    "fp8 e4m3": lambda x: x.to(torch.float8_e4m3fn).float(),
}


def error_of_sums(terms: int, rounded: Callable[[Tensor], Tensor], sums: int = 256) -> float:
    """RMS error of sums of `terms` products whose factors were rounded, over the RMS of the exact sums."""
    generator = torch.Generator().manual_seed(terms)
    a, b = (torch.randn(sums, terms, generator=generator) for _ in range(2))
    exact = (a.double() * b.double()).sum(-1)
    return float(((rounded(a).double() * rounded(b).double()).sum(-1) - exact).norm() / exact.norm())


def error_of_bf16_sums(terms: int, sums: int = 256) -> float:
    """The same, with factors of bf16 and each partial sum rounded to bf16 as well."""
    generator = torch.Generator().manual_seed(terms)
    a, b = (torch.randn(sums, terms, generator=generator) for _ in range(2))
    exact = (a.double() * b.double()).sum(-1)
    sum_, products = torch.zeros(sums, dtype=torch.bfloat16), a.bfloat16().float() * b.bfloat16().float()
    for column in range(terms):
        sum_ = (sum_.float() + products[:, column]).bfloat16()
    return float((sum_.double() - exact).norm() / exact.norm())


# --8<-- [end:rounding]


# --8<-- [start:underflow]
def lost_gradients(tokens: int = 4096, vocabulary: int = 8192, rows: int = 128) -> dict[str, float]:
    """The share of the gradient of the logits that becomes zero, by the dtype that it is handed on in; of some rows."""
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0))
    gradient = logits.softmax(-1) / tokens  # but for one column a row, of a mean loss
    found = {"bf16": gradient.bfloat16(), "fp16": gradient.half(), "fp16, scaled by 65536": (gradient * 65536).half()}
    return {name: float((kept == 0).float().mean()) for name, kept in found.items()}


# --8<-- [end:underflow]


# --8<-- [start:updates]
def moved(dtype: torch.dtype, lr: float, steps: int = 100, weights: int = 2**12) -> tuple[float, float]:
    """What AdamW does to weights of this dtype whose gradient never changes its sign.

    Returns the share of weights that never moved, and the mean way over that in float64.
    """
    generator = torch.Generator().manual_seed(0)
    first = 0.02 * torch.randn(weights, generator=generator)
    ways = []
    for kind in (dtype, torch.float64):
        p = nn.Parameter(first.to(kind))
        begin, optimizer = p.detach().clone(), torch.optim.AdamW([p], lr=lr, weight_decay=0)
        p.grad = torch.ones_like(p)
        for _ in range(steps):
            optimizer.step()
        ways.append((p.detach() - begin).double().abs())
    return float((ways[0] == 0).double().mean()), float(ways[0].mean() / ways[1].mean())


# --8<-- [end:updates]
