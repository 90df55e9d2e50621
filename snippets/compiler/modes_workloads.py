"""What is compiled in each mode: an MLP, blocks, steps of decoding, norms and convolutions."""

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn


# --8<-- [start:workloads]
class Block(nn.Module):
    """A pre-norm transformer block with causal attention: x (batch, tokens, width) to the same shape.

    With `cached` tokens it is a step of decoding: x has one token, whose key and value are written into the cache at
    `position`, and which attends to all up to there.
    """

    def __init__(self, width: int, cached: int = 0, batch: int = 0):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        if cached:
            for name in ("keys", "values"):
                self.register_buffer(name, torch.randn(batch, width // HEAD, cached, HEAD))

    def forward(self, x: Tensor, position: Tensor | None = None) -> Tensor:
        y = self.first(x)
        q, k, v = (layer(y).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if position is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            keys, values = self.keys.index_copy_(2, position, k), self.values.index_copy_(2, position, v)
            seen = (torch.arange(keys.shape[2], device=x.device) <= position)[None]
            mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Decoder(nn.Module):
    """One step of decoding through several blocks: x (batch, 1, width)."""

    def __init__(self, blocks: int, batch: int, cached: int, width: int):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, cached, batch) for _ in range(blocks))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, position)
        return x


class Norms(nn.Module):
    """Rows of several tensors, each normed, added and normed again; no tensor needs another."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(F.rms_norm(x + F.layer_norm(x, x.shape[-1:]), x.shape[-1:]) for x in tensors)


# --8<-- [end:workloads]
HEAD = 64  # width of a head
WORKLOADS: dict[str, dict[str, int]] = {
    "mlp": {"mlp": 4, "rows": 256, "width": 512},
    "block": {"block": 1, "batch": 4, "tokens": 128, "width": 512},
    "wide-block": {"block": 1, "batch": 8, "tokens": 1024, "width": 2048},
    "decode": {"decode": 4, "batch": 8, "cached": 1024, "width": 1024},
    "norms": {"norms": 8, "rows": 1024, "columns": 4096},
    "convolution": {"convolution": 4, "batch": 32, "channels": 128, "side": 28},
}


def make(shape: Mapping[str, int], device: torch.device, dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A workload for inference, and its inputs. The first size says which by its name, and how many there are."""
    kind, (number, *sizes) = next(iter(shape)), shape.values()
    draw = partial(torch.randn, device=device)
    inputs: tuple[Tensor, ...]
    module: nn.Module
    if kind == "mlp":
        rows, width = sizes
        module = nn.Sequential(*(layer for _ in range(number) for layer in (nn.Linear(width, width), nn.GELU())))
        inputs = (draw(rows, width),)
    elif kind == "block":
        batch, tokens, width = sizes
        module = nn.Sequential(*(Block(width) for _ in range(number)))
        inputs = (draw(batch, tokens, width),)
    elif kind == "decode":
        batch, cached, width = sizes
        module = Decoder(number, *sizes)
        inputs = draw(batch, 1, width), torch.tensor([3 * cached // 4], device=device)
    elif kind == "norms":
        module, inputs = Norms(), tuple(draw(*sizes) for _ in range(number))
    else:
        batch, channels, side = sizes
        layers = (convolution(channels) for _ in range(number))
        module, inputs = nn.Sequential(*layers), (draw(batch, channels, side, side),)
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data *= 2  # as drawn they make each layer's result smaller than the one before
    module = module.to(device, dtype).eval().requires_grad_(False)
    return module, tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)


def convolution(channels: int) -> nn.Module:
    """Convolution, norm and ReLU, as in an image model."""
    norm = nn.BatchNorm2d(channels)
    norm.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
    norm.running_var.uniform_(0.1, 0.3)  # type: ignore[union-attr]
    return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), norm, nn.ReLU())
