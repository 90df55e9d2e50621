"""Faults that nobody looked at while the assistant was written. They are counted, and never used to mend it.

Who mends the assistant after one of these moves the module to spellings.py, and writes another one here.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Biased(nn.Module):
    """Attention with a bias for distance, its scores scaled before the product."""

    def __init__(self, width: int = 64, heads: int = 4, length: int = 16):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.register_buffer("bias", -torch.arange(length).sub(torch.arange(length)[:, None]).abs().float())

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.matmul(q * q.shape[-1] ** -0.5, k.mT)  # fault: attention
        weights += self.bias
        return torch.matmul(torch.softmax(weights, dim=-1), v)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(self.mix(q, k, v).transpose(1, 2).flatten(2))


class BiasedClean(Biased):
    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)


class Crossed(nn.Module):
    """Attention of one sequence to another, heads folded into the batch as before SDPA."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.bmm(q, k.transpose(1, 2)).div(math.sqrt(q.size(-1)))  # fault: attention
        return torch.bmm(F.softmax(scores, -1), v)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.mix(self.q(x), *self.kv(memory).chunk(2, -1))


class CrossedClean(Crossed):
    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class NormByLength(nn.Module):
    """RMSNorm by the vector's length."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.gain, self.fc = nn.Parameter(torch.ones(width)), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return self.fc(x / (length / math.sqrt(x.shape[-1]) + 1e-6) * self.gain)  # fault: norm


class NormByLengthClean(NormByLength):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.rms_norm(x, self.gain.shape, self.gain))


class LayerNormByVar(NormByLength):
    def forward(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        return self.fc(torch.rsqrt(var + 1e-5) * (x - mean) * self.gain)  # fault: norm


class LayerNormByVarClean(NormByLength):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.layer_norm(x, self.gain.shape, self.gain))


class ReluGate(nn.Module):
    """A gated MLP with one projection, cut in two by an index."""

    def __init__(self, width: int = 64, hidden: int = 128):
        super().__init__()
        self.hidden = hidden
        self.up, self.down = nn.Linear(width, 2 * hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        both = self.up(x)
        return self.down(both[..., : self.hidden] * F.silu(both[..., self.hidden :]))  # fault: gated-mlp


class ReluGateClean(ReluGate):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.glu(self.up(x)))


class Projected(nn.Module):
    """Query, key and value from a dict of layers."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.parts = nn.ModuleDict({name: nn.Linear(width, width, bias=False) for name in "qkv"})

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (project(x)[:, None] for project in self.parts.values())  # fault: projections
        return F.scaled_dot_product_attention(q, k, v)[:, 0]


class ProjectedClean(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v)[:, 0]


class Smoothed(nn.Module):
    """A loss with smoothed labels, from the log of a softmax."""

    def __init__(self, width: int = 32, vocabulary: int = 8192):
        super().__init__()
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        log_p = F.log_softmax(self.head(hidden), dim=-1)
        right = -log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)  # fault: cross-entropy
        return (0.9 * right - 0.1 * log_p.mean(-1)).mean()


class SmoothedClean(Smoothed):
    """What the last token says, and no loss."""

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return self.head(hidden[:, -1]).argmax(-1) + 0 * target[:, -1]


class RotaryByPairs(nn.Module):
    def __init__(self, width: int = 64, length: int = 16):
        super().__init__()
        angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.fc = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        turned = a * self.cos - b * self.sin, a * self.sin + b * self.cos  # fault: rotary
        return self.fc(torch.stack(turned, -1).flatten(-2))


class RotaryByPairsClean(nn.Module):
    def __init__(self, width: int = 64, length: int = 16):
        super().__init__()
        self.positions, self.fc = nn.Embedding(length, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x + self.positions.weight)


class Expert(nn.Module):
    """Chooses a row of a table by a number that Python has to see."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.fc, self.table = nn.Linear(width, width), nn.Parameter(torch.randn(8, width))

    def forward(self, x: Tensor) -> Tensor:
        best = int(self.fc(x).mean((0, 1))[:8].argmax())  # fault: graph-break
        return x + self.table[best]


class ExpertClean(Expert):
    def forward(self, x: Tensor) -> Tensor:
        best = self.fc(x).mean((0, 1))[:8].argmax()
        return x + self.table.index_select(0, best[None])


class Watched(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.fc, self.seen = nn.Linear(width, width), []

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        self.seen.append(float(y.detach().abs().max()))  # fault: graph-break
        return y.relu()


class WatchedClean(Watched):
    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        self.seen = [y.detach().abs().amax()]
        return y.relu()


class Alternating(nn.Module):
    """Every second call does more."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.fc, self.calls = nn.Linear(width, width), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1  # fault: recompilation
        if self.calls % 2:
            x = x * 2
        return self.fc(x)


class AlternatingClean(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.fc(torch.where(self.calls % 2 == 1, x * 2, x))


class Halving(nn.Module):
    """Pools until few tokens are left: a loop as long as the sequence says."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        while x.shape[1] > 4:  # fault: recompilation
            x = F.avg_pool1d(self.fc(x).mT, 2).mT
        return x.mean(1)


class HalvingClean(Halving):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).mean(1)


class Edges(nn.Module):
    """A filter whose numbers are written into forward."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Conv2d(1, 4, 3)

    def forward(self, image: Tensor) -> Tensor:
        sobel = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]])  # fault: cuda-graph
        return self.mix(F.conv2d(image, sobel[None, None].to(image)))


class EdgesClean(Edges):
    def __init__(self):
        super().__init__()
        self.register_buffer("sobel", torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]])[None, None])

    def forward(self, image: Tensor) -> Tensor:
        return self.mix(F.conv2d(image, self.sobel))


class Clipped(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x.clamp_(-1, 1)  # fault: cuda-graph
        return self.fc(x)


class ClippedClean(Clipped):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.clamp(-1, 1))


class LongestFirst(nn.Module):
    """Cuts a batch to its longest sequence, which the host has to know."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.fc(x[:, : lengths.max()])  # fault: sync


class LongestFirstClean(LongestFirst):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        kept = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        return self.fc(torch.where(kept[..., None], x, 0))


class Kept(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        places = (rows.sum(-1) > 0).nonzero().squeeze(1)  # fault: sync
        return self.fc(rows.index_select(0, places)).sum(0)


class KeptClean(Kept):
    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        return (self.fc(rows) * (rows.sum(-1, keepdim=True) > 0)).sum(0)


class Average(nn.Module):
    """Keeps an average of what it computes, with the graph."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.fc, self.average = nn.Linear(width, width), None

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        self.average = y.mean((0, 1))  # fault: kept-graph
        return y - 0.1 * self.average


class AverageClean(Average):
    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        average = y.mean((0, 1))
        self.average = average.detach()
        return y - 0.1 * average


class Decoder(nn.Module):
    """Appends to its output at each step."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        done = x[:, :1]
        for _ in range(12):
            done = torch.cat([done, self.fc(done[:, -1:])], dim=1)  # fault: growing
        return done


class DecoderClean(Decoder):
    def forward(self, x: Tensor) -> Tensor:
        last, done = x[:, :1], [x[:, :1]]
        for _ in range(2):
            last = self.fc(last)
            done.append(last)
        return torch.cat(done, dim=1)


class Similar(nn.Module):
    """All pairs, by a product that is stored before it is summed."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return (self.fc(a)[:, :, None] * b[:, None]).sum(-1)  # fault: temporary


class SimilarClean(Similar):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.fc(a) @ b.mT


class Masked(Biased):
    """The mask that PyTorch's own helper makes."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(q.shape[-2], device=q.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # fault: mask


class MaskedClean(Biased):
    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Experts(nn.Module):
    """Sixteen experts, one after the other, on all tokens."""

    def __init__(self, width: int = 64, experts: int = 16):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.gate = nn.Linear(width, experts)

    def forward(self, x: Tensor) -> Tensor:
        share, y = self.gate(x).softmax(-1), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            y = y + share[..., number, None] * expert(x)  # fault: small-kernels
        return y


class ExpertsClean(nn.Module):
    def __init__(self, width: int = 64, experts: int = 16):
        super().__init__()
        self.weight, self.gate = nn.Parameter(torch.randn(experts, width, width)), nn.Linear(width, experts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bte,btd,edf->btf", self.gate(x).softmax(-1), x, self.weight)


class LogSoftmax(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        y = y - y.amax(-1, keepdim=True)
        return y - y.exp().sum(-1, keepdim=True).log()  # fault: written-out


class LogSoftmaxClean(LogSoftmax):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).log_softmax(-1)


class Turned(nn.Module):
    """A weight that is laid out anew before each product."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.t().contiguous()  # fault: copy


class TurnedClean(Turned):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.t()


def sequence() -> Tensor:
    return torch.randn(2, 16, 64)


def pair() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 16, 64), torch.randn(2, 16, 64)


def language() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 8, 32), torch.randint(0, 8192, (2, 8))


def image() -> Tensor:
    return torch.randn(2, 1, 16, 16)


def many() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 64, 64), torch.randn(2, 64, 64)


def cut() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 16, 64), torch.tensor([7, 12])


CASES = {
    "bias for distance": (lambda: (Biased(), sequence()), lambda: (BiasedClean(), sequence())),
    "attention by bmm": (lambda: (Crossed(), *pair()), lambda: (CrossedClean(), *pair())),
    "norm by length": (lambda: (NormByLength(), sequence()), lambda: (NormByLengthClean(), sequence())),
    "var_mean": (lambda: (LayerNormByVar(), sequence()), lambda: (LayerNormByVarClean(), sequence())),
    "gate by index": (lambda: (ReluGate(), sequence()), lambda: (ReluGateClean(), sequence())),
    "dict of projections": (lambda: (Projected(), sequence()), lambda: (ProjectedClean(), sequence())),
    "smoothed labels": (lambda: (Smoothed(), *language()), lambda: (SmoothedClean(), *language())),
    "rotary by pairs": (lambda: (RotaryByPairs(), sequence()), lambda: (RotaryByPairsClean(), sequence())),
    "int of argmax": (lambda: (Expert(), sequence()), lambda: (ExpertClean(), sequence())),
    "float of max": (lambda: (Watched(), sequence()), lambda: (WatchedClean(), sequence())),
    "every second call": (lambda: (Alternating(), sequence()), lambda: (AlternatingClean(), sequence())),
    "halving": (lambda: (Halving(), sequence()), lambda: (HalvingClean(), sequence())),
    "filter in forward": (lambda: (Edges(), image()), lambda: (EdgesClean(), image())),
    "clamps its input": (lambda: (Clipped(), sequence()), lambda: (ClippedClean(), sequence())),
    "longest length": (lambda: (LongestFirst(), *cut()), lambda: (LongestFirstClean(), *cut())),
    "nonzero": (lambda: (Kept(), sequence()), lambda: (KeptClean(), sequence())),
    "average": (lambda: (Average(), sequence()), lambda: (AverageClean(), sequence())),
    "appends": (lambda: (Decoder(), sequence()), lambda: (DecoderClean(), sequence())),
    "all pairs": (lambda: (Similar(), *many()), lambda: (SimilarClean(), *many())),
    "helper's mask": (lambda: (Masked(), sequence()), lambda: (MaskedClean(), sequence())),
    "experts": (lambda: (Experts(), sequence()), lambda: (ExpertsClean(), sequence())),
    "log-softmax": (lambda: (LogSoftmax(), sequence()), lambda: (LogSoftmaxClean(), sequence())),
    "weight laid out": (lambda: (Turned(), sequence()), lambda: (TurnedClean(), sequence())),
}
