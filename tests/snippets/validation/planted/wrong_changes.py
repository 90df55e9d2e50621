"""Changed modules that are wrong, each in another way: the check has to refuse every one of them."""

import math
import random
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.snippets.validation.planted.changes import Change, heads, line, rows


@dataclass
class Scored:
    """An output with a name for each part."""

    values: Tensor
    best: dict[str, list[Tensor]]


def attention(m: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float = 8**-0.5, diagonal: int = 0) -> Tensor:
    """Causal attention, step by step."""
    scores = q @ k.mT * scale
    hidden = torch.ones(12, 12, dtype=torch.bool).tril(diagonal).logical_not()
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


def normed(m: nn.Module, x: Tensor, eps: float = 1e-5, correction: int = 0) -> Tensor:
    """A norm by hand."""
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=correction) + eps).sqrt()


def updates(m: nn.Module, x: Tensor, first: str = "a", second: str = "b") -> Tensor:
    """Two buffers that remember two statistics."""
    with torch.no_grad():
        getattr(m, first).lerp_(x.mean(0), 0.1)
        getattr(m, second).lerp_(x.square().mean(0), 0.1)
    return m.fc(x)


def two_buffers() -> dict[str, Any]:
    return line() | {"a": torch.zeros(16), "b": torch.zeros(16)}


def remembers(m: nn.Module, x: Tensor, keep: bool = True) -> Tensor:
    """A cache of keys that grows with each call."""
    keys = m.fc(x) if m.cache is None else torch.cat([m.cache, m.fc(x)])
    m.cache = keys.detach() if keep else None
    return keys.sum(0)


def counts(m: nn.Module, x: Tensor, step: int = 1) -> Tensor:
    m.steps += step
    return m.fc(x) / m.steps


def appended(m: nn.Module, x: Tensor, kept: list[Tensor], keep: bool = True) -> Tensor:
    y = m.fc(x)
    kept.extend([y.detach()] * keep)
    return y


def entered(m: nn.Module, batch: dict[str, Tensor], name: str = "y") -> Tensor:
    batch[name] = m.fc(batch["x"])
    return batch[name].sum()


def scored(m: nn.Module, x: Tensor, last: bool = False) -> Scored:
    y = m.fc(x)
    return Scored(y, {"index": [y.argmin(-1) if last else y.argmax(-1)]})


def clamped(m: nn.Module, x: Tensor, clamp: bool = True) -> Tensor:
    with torch.no_grad():
        m.fc.weight.clamp_(-0.1, 0.1)
    weight = m.fc.weight if clamp else 1.0 * m.fc.weight
    return F.linear(x, weight, m.fc.bias)


def unclamped(m: nn.Module, x: Tensor) -> Tensor:
    return F.linear(x, m.fc.weight.clamp(-0.1, 0.1), m.fc.bias)


def force(m: nn.Module, x: Tensor, graph: bool = True) -> Tensor:
    (slope,) = torch.autograd.grad(m.fc(x).tanh().sum(), x, create_graph=graph)
    return slope if graph else slope.detach().requires_grad_()


def scales_its_input(m: nn.Module, x: Tensor) -> Tensor:
    return m.fc(x.mul_(2))


def draws(m: nn.Module, x: Tensor) -> Tensor:
    torch.rand(3)
    return m.fc(x)


def draws_in_python(m: nn.Module, x: Tensor) -> Tensor:
    random.random()
    return m.fc(x)


def half_its_gradient(m: nn.Module, x: Tensor) -> Tensor:
    y = m.fc(x)
    return 0.5 * y + 0.5 * y.detach()


def forgets_the_last_row(m: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([m.fc(x[:-1]), torch.zeros(1, 16)])


def one_token_off(m: nn.Module, x: Tensor) -> Tensor:
    best = m.fc(x).argmax(-1)
    best[-1] = (best[-1] + 1) % 16
    return best


def frozen(module: nn.Module) -> nn.Module:
    module.fc.weight.requires_grad_(False)
    return module


def no_dropout(module: nn.Module) -> nn.Module:
    module.drop.p = 0.0
    return module


def dropped(m: nn.Module, x: Tensor, p: float = 0.5) -> Tensor:
    return F.dropout(m.fc(x), p, m.training)


def unscaled(m: nn.Module, x: Tensor) -> Tensor:
    return dropped(m, x) * 0.5


def fc(m: nn.Module, x: Tensor) -> Tensor:
    return m.fc(x)


def norm() -> dict[str, Any]:
    return {"bn": nn.BatchNorm1d(16)}


def stats(m: nn.Module, x: Tensor, momentum: float = 0.1) -> Tensor:
    bn = m.bn
    return F.batch_norm(x, bn.running_mean, bn.running_var, bn.weight, bn.bias, True, momentum)


def batch_norm(m: nn.Module, x: Tensor) -> Tensor:
    return m.bn(x)


def complex_weight() -> dict[str, Any]:
    return {"w": nn.Parameter(torch.randn(16, dtype=torch.cfloat))}


WRONG = {
    "statistics not updated": Change(
        batch_norm, lambda m, x: F.batch_norm(x, None, None, m.bn.weight, m.bn.bias, True), norm
    ),
    "another momentum": Change(stats, partial(stats, momentum=0.2), norm),
    "a counter not updated": Change(batch_norm, stats, norm),
    "buffers swapped": Change(updates, partial(updates, first="b", second="a"), two_buffers),
    "a buffer written that was not": Change(fc, updates, two_buffers),
    "tokens + 1": Change(lambda m, x: m.fc(x).argmax(-1), lambda m, x: m.fc(x).argmax(-1) + 1, line),
    "one token of many": Change(lambda m, x: m.fc(x).argmax(-1), one_token_off, line),
    "a mask inverted": Change(lambda m, x: x > 0, lambda m, x: x <= 0),
    "indices in another order": Change(lambda m, x: x.topk(4).indices, lambda m, x: x.topk(4).indices.flip(-1)),
    "conjugated output": Change(lambda m, x: torch.fft.fft(x), lambda m, x: torch.fft.fft(x).conj()),
    "complex output tripled": Change(lambda m, x: torch.fft.fft(x), lambda m, x: 3 * torch.fft.fft(x)),
    "gradient conjugated": Change(
        lambda m, x: (m.w * torch.fft.fft(x)).abs().square(),
        lambda m, x: (m.w.conj() * torch.fft.fft(x).conj()).abs().square() + 0 * m.w.real + (m.w - m.w.detach()).imag,
        complex_weight,
    ),
    "dropout left out": Change(dropped, fc, line),
    "dropout turned off": Change(
        lambda m, x: m.drop(m.fc(x)),
        lambda m, x: m.drop(m.fc(x)),
        lambda: line() | {"drop": nn.Dropout(0.5)},
        mend=no_dropout,
    ),
    "another rate of dropout": Change(dropped, partial(dropped, p=0.1), line),
    "dropout not scaled": Change(dropped, unscaled, line),
    "more random numbers drawn": Change(fc, draws, line),
    "random numbers of Python drawn": Change(fc, draws_in_python, line),
    "a change of the input lost": Change(scales_its_input, lambda m, x: m.fc(2 * x), line),
    "the input written to": Change(lambda m, x: m.fc(2 * x), scales_its_input, line),
    "an entry in a list lost": Change(appended, partial(appended, keep=False), line, lambda: (torch.randn(8, 16), [])),
    "an entry under another name": Change(
        entered, partial(entered, name="z"), line, lambda: ({"x": torch.randn(8, 16)},)
    ),
    "a change of a parameter lost": Change(clamped, unclamped, line),
    "a cache lost": Change(remembers, partial(remembers, keep=False), lambda: line() | {"cache": None}),
    "a count lost": Change(counts, partial(counts, step=0), lambda: line() | {"steps": 1}),
    "wrong dtype": Change(fc, lambda m, x: m.fc(x).double(), line),
    "indices of another dtype": Change(lambda m, x: x.argmax(-1), lambda m, x: x.argmax(-1).int()),
    "coarser numbers inside": Change(fc, lambda m, x: m.fc(x.bfloat16().float()), line),
    "a loss of another shape": Change(lambda m, x: m.fc(x).mean(), lambda m, x: m.fc(x).mean().view(1), line),
    "shape broadcast": Change(
        lambda m, x: (m.fc(x) - x.mean(-1, keepdim=True)).square(),
        lambda m, x: (m.fc(x)[:, None] - x.mean(-1, keepdim=True)).square(),
        line,
    ),
    "a missing output": Change(lambda m, x: (m.fc(x), x.sum()), fc, line),
    "an output too many": Change(fc, lambda m, x: (m.fc(x), x.sum()), line),
    "swapped outputs": Change(lambda m, x: (m.fc(x), x + 1), lambda m, x: (x + 1, m.fc(x)), line),
    "an output of another name": Change(lambda m, x: {"y": m.fc(x)}, lambda m, x: {"z": m.fc(x)}, line),
    "None instead of a tensor": Change(lambda m, x: (m.fc(x), x), lambda m, x: (m.fc(x), None), line),
    "an index in a dataclass": Change(scored, partial(scored, last=True), line),
    "another number of Python": Change(lambda m, x: (m.fc(x), x.max().item()), lambda m, x: (m.fc(x), 1.0), line),
    "another word": Change(lambda m, x: (m.fc(x), "mean"), lambda m, x: (m.fc(x), "sum"), line),
    "NaN instead of a number": Change(lambda m, x: x.relu(), lambda m, x: torch.where(x > 2, math.nan, x.relu())),
    "infinity instead of a number": Change(lambda m, x: x.softmax(-1).log(), lambda m, x: x.sigmoid().log() / 0),
    "gradient of one parameter lost": Change(fc, lambda m, x: F.linear(x, m.fc.weight, m.fc.bias.detach()), line),
    "a parameter frozen": Change(fc, fc, line, mend=frozen),
    "gradient of the input lost": Change(fc, lambda m, x: m.fc(x.detach()), line, rows(8, 16)),
    "detach": Change(fc, lambda m, x: m.fc(x).detach(), line),
    "gradient of one output lost": Change(
        lambda m, x: (m.fc(x), m.fc(x).sin()), lambda m, x: (m.fc(x), m.fc(x).sin().detach()), line
    ),
    "half the gradient": Change(fc, half_its_gradient, line),
    "scaled loss": Change(lambda m, x: m.fc(x).square().mean(), lambda m, x: m.fc(x).square().mean() / 8, line),
    "sum instead of mean": Change(lambda m, x: m.fc(x).mean(0), lambda m, x: m.fc(x).sum(0), line),
    "a straight-through gradient lost": Change(
        lambda m, x: m.fc(x) + (m.fc(x).round() - m.fc(x)).detach(), lambda m, x: m.fc(x).round(), line
    ),
    "a second derivative lost": Change(force, partial(force, graph=False), line, rows(8, 16)),
    "off-by-one mask": Change(attention, partial(attention, diagonal=1), inputs=heads),
    "a scale left out": Change(attention, partial(attention, scale=1.0), inputs=heads),
    "causality left out": Change(attention, partial(attention, diagonal=12), inputs=heads),
    "eps left out": Change(normed, partial(normed, eps=0.0), inputs=lambda: (1e-2 * torch.randn(8, 16),)),
    "another correction": Change(normed, partial(normed, correction=1)),
    "wrong axis": Change(lambda m, x: x.softmax(-1), lambda m, x: x.softmax(-2), inputs=rows(16, 16)),
    "the other GELU": Change(lambda m, x: F.gelu(m.fc(x)), lambda m, x: F.gelu(m.fc(x), approximate="tanh"), line),
    "a bias left out": Change(
        lambda m, x: F.layer_norm(x, (16,), m.w, m.b),
        lambda m, x: F.layer_norm(x, (16,), m.w),
        lambda: {"w": nn.Parameter(torch.ones(16)), "b": nn.Parameter(torch.zeros(16))},
    ),
    "the last row left out": Change(fc, forgets_the_last_row, line),
    "a small residual left out": Change(lambda m, x: x + 1e-4 * m.fc(x), lambda m, x: x + 0 * m.fc(x), line),
}
