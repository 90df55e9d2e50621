"""Usual modules whose memory is counted and compared with what the allocator of the CPU gives out."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn, randn
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM


class Does(nn.Module):
    """A function of its layers and inputs."""

    def __init__(self, function: Callable, *layers: nn.Module):
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*self.layers, *inputs)


class Keeps(torch.autograd.Function):
    """Saves one tensor as it should, and another under a name of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.exp())
        ctx.double = x * 2
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0] * ctx.double


def heads(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.view(8, 128, 3, 4, 16).permute(2, 0, 3, 1, 4))


def by_hand(layer: nn.Module, x: Tensor) -> Tensor:
    q, k, v = heads(layer(x))
    return (q @ k.mT / 4).softmax(-1) @ v


def indices(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long)


def indexed(layer: nn.Module, x: Tensor, i: Tensor) -> Tensor:
    return layer(x)[i[:, 0]] + layer(x).gather(1, i) + layer(x).index_select(0, i[:, 1])


def filtered(layer: nn.Module, x: Tensor) -> Tensor:
    return torch.fft.ifft(torch.fft.fft(layer(x)) * torch.polar(torch.ones(256), torch.zeros(256))).real


def viewed(layer: nn.Module, x: Tensor) -> Tensor:
    return (layer(x)[:, None].expand(-1, 8, -1) * layer(x)[:, None].tanh()).transpose(0, 1).exp()


def llama() -> nn.Module:
    sizes = {"hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=512, num_key_value_heads=2, use_cache=False, **sizes))
    return Does(lambda model, tokens: model(tokens).logits, model)


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)


def linear(width: int = 256, out: int = 256) -> nn.Linear:
    return nn.Linear(width, out)


def convolutions() -> nn.Module:
    first = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()
    return nn.Sequential(*first, nn.MaxPool2d(2), nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())


MODULES: dict[str, Callable[[], tuple]] = {
    "linear": lambda: (nn.Sequential(linear(), nn.GELU(), linear(), nn.ReLU()), randn(256, 256)),
    "convolution": lambda: (convolutions(), randn(8, 16, 32, 32)),
    "3-d convolution": lambda: (nn.Conv3d(8, 8, 3), randn(2, 8, 16, 16, 16)),
    "LSTM": lambda: (Does(lambda one, x: one(x)[0], nn.LSTM(64, 64, 2)), randn(64, 16, 64)),
    "GRU": lambda: (Does(lambda one, x: one(x)[0], nn.GRU(64, 64)), randn(16, 64, 64)),
    "encoder, training": lambda: (encoder(), randn(8, 128, 64)),
    "encoder, eval": lambda: (encoder().eval(), randn(8, 128, 64)),
    "attention": lambda: (Does(lambda one, x: one(x, x, x)[0], nn.MultiheadAttention(64, 4)), randn(128, 8, 64)),
    "attention by hand": lambda: (Does(by_hand, linear(64, 192)), randn(8, 128, 64)),
    "SDPA": lambda: (
        Does(lambda one, x: F.scaled_dot_product_attention(*heads(one(x))), linear(64, 192)),
        randn(8, 128, 64),
    ),
    "layer norm": lambda: (nn.Sequential(nn.LayerNorm(256), linear(), nn.RMSNorm(256)), randn(256, 256)),
    "group norm": lambda: (nn.Sequential(nn.Conv2d(8, 16, 1), nn.GroupNorm(4, 16), nn.SiLU()), randn(8, 8, 32, 32)),
    "embedding": lambda: (Does(lambda one, i: one(i).tanh(), nn.Embedding(1000, 64)), indices(64, 64)),
    "embedding bag": lambda: (
        Does(lambda one, i: one(i).tanh(), nn.EmbeddingBag(1000, 64, mode="max")),
        indices(64, 64),
    ),
    "dropout": lambda: (nn.Sequential(linear(), nn.Dropout(0.5), linear(), nn.Dropout(0.1)), randn(256, 256)),
    "checkpoint": lambda: (
        Does(
            lambda one, two, x: two(checkpoint(one, x, use_reentrant=False)),
            nn.Sequential(linear(), nn.GELU()),
            linear(),
        ),
        randn(512, 256),
    ),
    "in place": lambda: (Does(lambda one, x: one(x).mul_(2).add_(1).relu_(), linear()), randn(256, 256)),
    "views": lambda: (Does(viewed, linear(64, 64)), randn(256, 64)),
    "FFT": lambda: (Does(filtered, linear()), randn(256, 256)),
    "Llama": lambda: (llama(), indices(2, 128)),
    "cross-entropy": lambda: (
        Does(lambda one, x, t: F.cross_entropy(one(x), t), linear(64, 1024)),
        randn(256, 64),
        indices(256),
    ),
    "scans": lambda: (Does(lambda one, x: one(x).cumsum(0) * one(x).sigmoid(), linear(64, 64)), randn(512, 64)),
    "indices": lambda: (Does(indexed, linear(64, 64)), randn(512, 64), indices(512, 64)),
    "selection": lambda: (Does(lambda one, x, i: one(x).index_select(1, i), linear()), randn(512, 256), indices(256)),
    "interpolation": lambda: (
        Does(lambda one, x: F.interpolate(one(x), scale_factor=2, mode="bilinear"), nn.Conv2d(8, 8, 3)),
        randn(4, 8, 32, 32),
    ),
    "Function": lambda: (Does(lambda one, x: Keeps.apply(one(x)), linear()), randn(256, 256)),
}
