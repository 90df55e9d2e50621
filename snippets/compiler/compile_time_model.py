"""A model of equal layers, and ways to compile it: whole, layer by layer, or with a nested region."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


# --8<-- [start:model]
class Block(nn.Module):
    """A layer of a decoder: causal attention and a gated MLP, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        gate, up = self.up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


# --8<-- [end:model]
class Plain(nn.Module):
    """A layer for a CPU: products alone, which Inductor leaves to a library, so that no C++ compiler has to run."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width * heads), nn.Linear(width * heads, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x))


# --8<-- [start:region]
class Region(Block):
    """The same layer; inside a compiled model it is compiled once, and each further one refers to it."""

    forward = torch.compiler.nested_compile_region(Block.forward)


# --8<-- [end:region]
class PlainRegion(Plain):
    forward = torch.compiler.nested_compile_region(Plain.forward)


class Stack(nn.Module):
    """Layers, one after the other. `nn.Sequential` is PyTorch's own code, into which `Module.compile` doesn't look."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def make_model(way: str, layers: int, size: "Size") -> Stack:
    kinds = {"cuda": (Block, Region), "cpu": (Plain, PlainRegion)}
    kind = kinds[size.device][way == "nested"]
    with torch.device(size.device):
        return Stack([kind(size.width, size.heads) for _ in range(layers)]).to(size.dtype)


# --8<-- [start:ways]
def compile_model(model: Stack, way: str, **options: Any) -> None:
    """Say what is to be compiled, with options of `torch.compile`; nothing is, before the first call."""
    if way in ("whole", "nested"):
        model.compile(**options)  # one graph of all layers
    elif way == "regional":
        for layer in model.layers:
            layer.compile(**options)  # a graph of one layer, which the others share


# --8<-- [end:ways]
@dataclass(frozen=True)
class Size:
    """What is run, and where."""

    device: str
    width: int
    heads: int
    tokens: int

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device == "cuda" else torch.float32

    def make_input(self) -> Tensor:
        return torch.randn(1, self.tokens, self.width, device=self.device, dtype=self.dtype)


SIZES = {"cuda": Size("cuda", 1024, 8, 512), "cpu": Size("cpu", 64, 2, 16)}
