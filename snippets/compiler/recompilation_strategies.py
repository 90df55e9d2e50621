"""One block, prompts of many lengths, and five ways to compile the block for them."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


# --8<-- [start:block]
@dataclass(frozen=True)
class Weights:
    """Of one transformer block."""

    qkv: Tensor
    out: Tensor
    up: Tensor
    down: Tensor
    heads: int


def block(x: Tensor, weights: Weights) -> Tensor:
    """A causal transformer block: `x` has shape (batch, length, width)."""
    batch, length, width = x.shape
    qkv = F.linear(F.rms_norm(x, (width,)), weights.qkv).view(batch, length, 3, weights.heads, -1)
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    x = x + F.linear(mixed.transpose(1, 2).reshape(batch, length, width), weights.out)
    gate, up = F.linear(F.rms_norm(x, (width,)), weights.up).chunk(2, dim=-1)
    return x + F.linear(F.silu(gate) * up, weights.down)


# --8<-- [end:block]
def make_weights(width: int, device: torch.device, dtype: torch.dtype) -> Weights:
    shapes = (3 * width, width), (width, width), (4 * width, width), (width, 2 * width)
    tensors = (torch.randn(shape, device=device).div(shape[1] ** 0.5).to(dtype) for shape in shapes)
    return Weights(*tensors, heads=max(1, width // 128))


# --8<-- [start:lengths]
LONGEST = 1024


def prompt_lengths(calls: int) -> list[int]:
    """Lengths as prompts have them: most are short, a few are ten times longer. The mean is about 160 tokens."""
    draw = random.Random(0)
    return [min(max(round(draw.lognormvariate(math.log(100), 0.98)), 2), LONGEST) for _ in range(calls)]


# --8<-- [end:lengths]
# --8<-- [start:strategies]
Block = Callable[[Tensor, Weights], Tensor]


def plain(compiled: Block, x: Tensor, weights: Weights) -> Tensor:
    return compiled(x, weights)


def marked(compiled: Block, x: Tensor, weights: Weights) -> Tensor:
    torch._dynamo.mark_dynamic(x, 1, min=2, max=LONGEST)
    return compiled(x, weights)


def unbacked(compiled: Block, x: Tensor, weights: Weights) -> Tensor:
    torch._dynamo.decorators.mark_unbacked(x, 1)
    return compiled(x, weights)


def bounded(x: Tensor, weights: Weights) -> Tensor:
    """The block, told what an unbacked length may be: attention may ask, as `attend` of recompilation_marks does."""
    torch._check(x.shape[1] >= 2)
    torch._check(x.shape[1] <= LONGEST)
    return block(x, weights)


def padded(compiled: Block, x: Tensor, weights: Weights) -> Tensor:
    """Zeros behind the end, up to a power of two. A causal block never looks ahead: what is cut off plays no part."""
    length = x.shape[1]
    return compiled(F.pad(x, (0, 0, 0, bucket(length) - length)), weights)[:, :length]


def bucket(length: int) -> int:
    return max(16, 1 << (length - 1).bit_length())


STRATEGIES: dict[str, tuple[Block, Callable[[Block, Tensor, Weights], Tensor], dict[str, Any]]] = {
    "static": (block, plain, {"dynamic": False}),
    "automatic": (block, plain, {}),
    "marked": (block, marked, {}),
    "padded": (block, padded, {"dynamic": False}),
    "unbacked": (bounded, unbacked, {}),
}
# --8<-- [end:strategies]
