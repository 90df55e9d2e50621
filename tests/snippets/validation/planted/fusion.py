"""What one kernel would do and eager runs as many."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Causal attention as it should be: one projection, one kernel."""

    def __init__(self, width: int = 64, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        batch, length, _ = x.shape
        return self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class AttentionWritten(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # fault: attention
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(x.shape))


class AttentionEinsum(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        weights = F.dropout(F.softmax(scores.float(), dim=-1).to(v.dtype), 0.1, self.training)  # fault: attention
        y = torch.einsum("bhij,bhjd->bhid", weights, v)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class AttentionEinsumClean(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class ThreeProjections(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def apart(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.apart(self.q(x)), self.apart(self.k(x)), self.apart(self.v(x))  # fault: projections
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class RootMeanSquare(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)  # fault: norm
        x = x * torch.rsqrt(variance + 1e-6)
        return self.out(self.weight * x)


class RootMeanSquareClean(RootMeanSquare):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.rms_norm(x, x.shape[-1:], self.weight, 1e-6))


class LayerNormWritten(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))
        self.beta = nn.Parameter(torch.zeros(width))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.out(self.gamma * (x - mean) / (std + 1e-5) + self.beta)  # fault: norm


class LayerNormWrittenClean(LayerNormWritten):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.layer_norm(x, x.shape[-1:], self.gamma, self.beta))


class ConvNeXtHead(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.gelu(self.norm(x)))  # fault: norm-activation


class ConvNeXtHeadClean(ConvNeXtHead):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.fc(self.norm(x)))


class GatedMLP(nn.Module):
    def __init__(self, width: int = 64, hidden: int = 128):
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))  # fault: gated-mlp


class GatedMLPClean(nn.Module):
    def __init__(self, width: int = 64, hidden: int = 128):
        super().__init__()
        self.up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.glu(self.up(x)))


class LanguageHead(nn.Module):
    def __init__(self, width: int = 32, vocabulary: int = 32000):
        super().__init__()
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        logits = self.head(hidden)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), target.view(-1))  # fault: cross-entropy


class LanguageHeadClean(LanguageHead):
    """Eight rows at a time; what a chunk needs is computed again in backward."""

    def part(self, hidden: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.head(hidden), target, reduction="sum")

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        total = hidden.new_zeros(())
        chunks = zip(hidden.flatten(0, 1).split(8), target.flatten().split(8), strict=True)
        for rows, targets in chunks:
            total = total + torch.utils.checkpoint.checkpoint(self.part, rows, targets, use_reentrant=False)
        return total / target.numel()


class HandLoss(LanguageHead):
    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        scores = torch.log_softmax(self.head(hidden), dim=-1)  # fault: cross-entropy
        return -scores.gather(-1, target[..., None]).mean()


class Rotary(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4, length: int = 32):
        super().__init__()
        self.attention = Attention(width, heads)
        angles = torch.arange(length)[:, None] * 10000 ** -(torch.arange(0, width // heads, 2) / (width // heads))
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos())
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin())

    def turn(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)  # fault: rotary
        return x * self.cos[: x.shape[-2]] + turned * self.sin[: x.shape[-2]]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.attention.split(x)
        y = F.scaled_dot_product_attention(self.turn(q), self.turn(k), v, is_causal=True)
        return self.attention.out(y.transpose(1, 2).reshape(x.shape))


class RotaryComplex(Rotary):
    def turn(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        angles = torch.complex(self.cos, self.sin)[: x.shape[-2], : x.shape[-1] // 2]
        return torch.view_as_real(pairs * angles).flatten(-2).to(x.dtype)  # fault: rotary


class LearnedPositions(Rotary):
    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(32, 64))

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x + self.positions[: x.shape[1]])


class GELUWritten(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))  # fault: chain
        return self.down(h)


class GELUWrittenClean(GELUWritten):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class PhysicsLoss(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.field = nn.Linear(width, width)

    def blend(self, u: Tensor) -> Tensor:
        wave = torch.sin(u) * torch.exp(-u.abs())  # fault: chain
        return torch.where(u > 0, wave, -wave) + 0.1 * u

    def forward(self, x: Tensor) -> Tensor:
        return self.blend(self.field(x))


class PhysicsLossClean(PhysicsLoss):
    def __init__(self, width: int = 64):
        super().__init__(width)
        self.fused = torch.compile(self.blend, backend="eager")

    def forward(self, x: Tensor) -> Tensor:
        return self.fused(self.field(x))


class SoftmaxWritten(nn.Module):
    def __init__(self, width: int = 64, classes: int = 10):
        super().__init__()
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.head(x)
        powers = torch.exp(logits - logits.amax(-1, keepdim=True))  # fault: written-out
        return powers / powers.sum(-1, keepdim=True)


class SoftmaxWrittenClean(SoftmaxWritten):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(x).softmax(-1)


def sequence(width: int = 64) -> Tensor:
    return torch.randn(2, 16, width)


def language() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 32, 32), torch.randint(0, 32000, (2, 32))


CASES = {
    "attention": (lambda: (AttentionWritten(), sequence()), lambda: (Attention(), sequence())),
    "attention by einsum": (lambda: (AttentionEinsum(), sequence()), lambda: (AttentionEinsumClean(), sequence())),
    "three projections": (lambda: (ThreeProjections(), sequence()), lambda: (Attention(), sequence())),
    "rms norm": (lambda: (RootMeanSquare(), sequence()), lambda: (RootMeanSquareClean(), sequence())),
    "layer norm": (lambda: (LayerNormWritten(), sequence()), lambda: (LayerNormWrittenClean(), sequence())),
    "norm and gelu": (
        lambda: (ConvNeXtHead(), torch.randn(32, 256, 64)),
        lambda: (ConvNeXtHeadClean(), torch.randn(32, 256, 64)),
    ),
    "gated mlp": (lambda: (GatedMLP(), sequence()), lambda: (GatedMLPClean(), sequence())),
    "cross-entropy": (lambda: (LanguageHead(), *language()), lambda: (LanguageHeadClean(), *language())),
    "loss by hand": (lambda: (HandLoss(), *language()), lambda: (LanguageHeadClean(), *language())),
    "rotary, halves": (lambda: (Rotary(), sequence()), lambda: (LearnedPositions(), sequence())),
    "rotary, complex": (lambda: (RotaryComplex(), sequence()), lambda: (LearnedPositions(), sequence())),
    "gelu": (lambda: (GELUWritten(), sequence()), lambda: (GELUWrittenClean(), sequence())),
    "pointwise chain": (lambda: (PhysicsLoss(), sequence()), lambda: (PhysicsLossClean(), sequence())),
    "softmax": (lambda: (SoftmaxWritten(), sequence()), lambda: (SoftmaxWrittenClean(), sequence())),
}
