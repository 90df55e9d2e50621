"""Changed modules that are right: the check has to pass every one of them."""

import collections
import math
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.snippets.validation.planted.changes import Change, heads, line, rows
from tests.snippets.validation.planted.wrong_changes import (
    Scored,
    attention,
    batch_norm,
    complex_weight,
    draws,
    dropped,
    fc,
    force,
    norm,
    normed,
    remembers,
    two_buffers,
    updates,
)

Pair = collections.namedtuple("Pair", "values best")
TABLE = np.linspace(0, 1, 16, dtype=np.float32)
WEIGHT = torch.linspace(-1, 1, 256).view(16, 16)  # of no module


def cells(m: nn.Module, x: Tensor) -> Tensor:
    """A GRU, step by step, whose state begins as `torch.zeros`."""
    h = torch.zeros(x.shape[0], 16)
    for t in range(x.shape[1]):
        h = m.cell(x[:, t], h)
    return h


def hoisted(m: nn.Module, x: Tensor) -> Tensor:
    """The same with the product of all inputs in front of the loop."""
    h, gates = torch.zeros(x.shape[0], 16), F.linear(x, m.cell.weight_ih, m.cell.bias_ih)
    for t in range(x.shape[1]):
        (r, z, n), (hr, hz, hn) = gates[:, t].chunk(3, -1), F.linear(h, m.cell.weight_hh, m.cell.bias_hh).chunk(3, -1)
        update = (z + hz).sigmoid()
        h = torch.lerp((n + (r + hr).sigmoid() * hn).tanh(), h, update)
    return h


def fused_attention(m: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def rms_norm(m: nn.Module, x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * m.w


def projections() -> dict[str, Any]:
    return {name: nn.Linear(16, 16) for name in "qkv"}


def merged(m: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    weight, bias = torch.cat([m.q.weight, m.k.weight, m.v.weight]), torch.cat([m.q.bias, m.k.bias, m.v.bias])
    return F.linear(x, weight, bias).chunk(3, -1)


def in_place(m: nn.Module, x: Tensor) -> Tensor:
    y = m.fc(x)
    y += 1
    return y.relu_()


def summed(m: nn.Module, x: Tensor) -> Tensor:
    total = torch.zeros(x.shape[1:])
    for row in x:
        total = total + row
    return total


def scanned(m: nn.Module, x: Tensor) -> Tensor:
    rows = [x[0]]
    for row in x[1:]:
        rows.append(rows[-1] + row)
    return torch.stack(rows)


def rotated(m: nn.Module, x: Tensor) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns()).flatten(-2)


def turns() -> Tensor:
    return torch.polar(torch.ones(8), torch.arange(8.0))


def rotated_by_parts(m: nn.Module, x: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = turns().real, turns().imag
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def updated_apart(m: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.a.mul_(0.9).add_(0.1 * x.mean(0))
        m.b.copy_(0.9 * m.b + 0.1 * (x * x).sum(0) / len(x))
    return F.linear(x, m.fc.weight) + m.fc.bias


def remembers_a_list(m: nn.Module, x: Tensor) -> Tensor:
    m.parts = [*m.parts, m.fc(x).detach()] if m.cache is None else m.parts
    old = sum((part.sum(0) for part in m.parts[:-1]), torch.zeros(16))
    return old + m.fc(x).sum(0)


def by_function(m: nn.Module, x: Tensor) -> Tensor:
    return torch.func.grad(lambda y: F.linear(y, m.fc.weight, m.fc.bias).tanh().sum())(x)


def noisy(m: nn.Module, x: Tensor, late: bool = False) -> Tensor:
    noise = torch.randn(8, 16) if late else torch.randn_like(x)
    return m.fc(x + 0.1 * noise) if late else m.fc(x) + F.linear(0.1 * noise, m.fc.weight)


def noisy_in_place(m: nn.Module, x: Tensor) -> Tensor:
    return m.fc(x + 0.1 * torch.empty_like(x).normal_())


def pooled(m: nn.Module, x: Tensor) -> Tensor:
    return m.conv(x).relu().mean((2, 3))


def picture() -> dict[str, Any]:
    return {"conv": nn.Conv2d(3, 8, 3)}


def channels_last(module: nn.Module) -> nn.Module:
    return module.to(memory_format=torch.channels_last)


def batch_norm_by_function(m: nn.Module, x: Tensor) -> Tensor:
    m.bn.num_batches_tracked.add_(1)
    return F.batch_norm(x, m.bn.running_mean, m.bn.running_var, m.bn.weight, m.bn.bias, True)


def gelu(m: nn.Module, x: Tensor) -> Tensor:
    y = m.fc(x)
    return 0.5 * y * (1 + torch.erf(y / math.sqrt(2)))


def nodes() -> tuple[Tensor, Tensor]:
    return torch.randn(24, 16, requires_grad=True), torch.randint(0, 6, (24,))


def likely(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return -x.log_softmax(-1).gather(1, y[:, None]).mean()


def column() -> dict[str, Any]:
    return {"w": nn.Parameter(torch.randn(16))}


def compiled(backend: str):
    return partial(torch.compile, backend=backend)


RIGHT = {
    "the same": Change(fc, fc, line),
    "a GRU whose state is torch.zeros": Change(cells, hoisted, lambda: {"cell": nn.GRUCell(16, 16)}, rows(4, 6, 16)),
    "F.rms_norm": Change(rms_norm, lambda m, x: F.rms_norm(x, (16,), m.w, 1e-6), column, rows(8, 16)),
    "F.layer_norm": Change(normed, lambda m, x: F.layer_norm(x, (16,)), inputs=rows(8, 16)),
    "F.gelu": Change(gelu, lambda m, x: F.gelu(m.fc(x)), line),
    "F.cross_entropy": Change(likely, lambda m, x, y: F.cross_entropy(x, y), inputs=nodes),
    "attention in one call": Change(attention, fused_attention, inputs=heads),
    "merged projections": Change(lambda m, x: (m.q(x), m.k(x), m.v(x)), merged, projections),
    "out of place": Change(in_place, lambda m, x: (m.fc(x) + 1).relu(), line),
    "channels last": Change(pooled, pooled, picture, lambda: (torch.randn(2, 3, 9, 9),), channels_last),
    "compiled, eager": Change(gelu, gelu, line, mend=compiled("eager")),
    "compiled, aot_eager": Change(gelu, gelu, line, mend=compiled("aot_eager")),
    "compiled, dropout": Change(dropped, dropped, line, mend=compiled("aot_eager")),
    "compiled statistics": Change(batch_norm, batch_norm, norm, mend=compiled("aot_eager")),
    "reordered sum": Change(summed, lambda m, x: x.sum(0), inputs=rows(200, 16)),
    "cumsum": Change(scanned, lambda m, x: x.cumsum(0), inputs=rows(60, 16)),
    "reordered sum in float64": Change(summed, lambda m, x: x.sum(0), inputs=lambda: (torch.randn(200, 16).double(),)),
    "einsum": Change(lambda m, x: x @ m.fc.weight.T, lambda m, x: torch.einsum("ij,kj", x, m.fc.weight), line),
    "gather": Change(
        lambda m, x, i: x.index_select(0, i), lambda m, x, i: x.gather(0, i[:, None].expand(-1, 16)), inputs=nodes
    ),
    "index_add": Change(
        lambda m, x, i: torch.zeros(6, 16).index_add(0, i, x),
        lambda m, x, i: F.one_hot(i, 6).to(x.dtype).T @ x,
        inputs=nodes,
    ),
    "embedding": Change(
        lambda m, i: F.one_hot(i, 16).to(m.fc.weight.dtype) @ m.fc.weight,
        lambda m, i: F.embedding(i, m.fc.weight),
        line,
        lambda: (torch.randint(0, 16, (8,)),),
    ),
    "argmax by topk": Change(lambda m, x: m.fc(x).argmax(-1), lambda m, x: m.fc(x).topk(1).indices[:, 0], line),
    "where": Change(
        lambda m, x: x.masked_fill(x < 0, -math.inf), lambda m, x: torch.where(x < 0, -math.inf, x), inputs=rows(8, 16)
    ),
    "NaN where it was": Change(lambda m, x: x.log(), lambda m, x: x.log2() * math.log(2)),
    "a complex product by parts": Change(rotated, rotated_by_parts, inputs=rows(8, 16)),
    "complex weights": Change(
        lambda m, x: torch.fft.ifft(torch.fft.fft(x) * m.w),
        lambda m, x: torch.fft.ifft(m.w * torch.fft.fft(x.to(m.w.dtype))),
        complex_weight,
    ),
    "rfft": Change(lambda m, x: torch.fft.fft(x)[..., :9], lambda m, x: torch.fft.rfft(x), inputs=rows(8, 16)),
    "dropout": Change(lambda m, x: m.drop(m.fc(x)), dropped, lambda: line() | {"drop": nn.Dropout(0.5)}, rows(8, 16)),
    "noise": Change(noisy, partial(noisy, late=True), line),
    "noise in place": Change(noisy_in_place, lambda m, x: m.fc(torch.randn_like(x).mul(0.1).add(x)), line),
    "random numbers drawn as before": Change(draws, draws, line),
    "statistics by the function": Change(batch_norm, batch_norm_by_function, norm),
    "buffers written otherwise": Change(updates, updated_apart, two_buffers),
    "the input written otherwise": Change(lambda m, x: m.fc(x.mul_(2)), lambda m, x: m.fc(x.copy_(x + x)), line),
    "a cache as a list": Change(
        remembers, remembers_a_list, lambda: line() | {"cache": None, "parts": []}, rows(8, 16)
    ),
    "a derivative by torch.func": Change(force, by_function, line, rows(8, 16)),
    "a list instead of a tuple": Change(lambda m, x: (m.fc(x), x), lambda m, x: [m.fc(x), x], line),
    "a named tuple instead of a dataclass": Change(
        lambda m, x: Scored(m.fc(x), {"index": [x.argmax(-1)]}),
        lambda m, x: Pair(m.fc(x), {"index": [x.argmax(-1)]}),
        line,
    ),
    "a number of Python": Change(
        lambda m, x: (x, (x * x).mean().item()), lambda m, x: (x, x.square().sum().item() / 128)
    ),
    "constants of NumPy, and of no module": Change(
        lambda m, x: torch.from_numpy(TABLE) * (x @ WEIGHT), lambda m, x: x @ (WEIGHT * torch.from_numpy(TABLE))
    ),
    "bfloat16": Change(
        rms_norm,
        lambda m, x: F.rms_norm(x, (16,), m.w, 1e-6),
        lambda: {"w": nn.Parameter(torch.randn(16).bfloat16())},
        lambda: (torch.randn(8, 16).bfloat16(),),
    ),
    "an empty batch": Change(fc, lambda m, x: x @ m.fc.weight.T + m.fc.bias, line, rows(0, 16)),
}
