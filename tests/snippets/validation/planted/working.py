"""Modules that work, and that a tool may stumble over: none may be refused."""

import collections
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.snippets.validation.planted.changes import Net, line


@torch.library.custom_op("planted_working::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return x * 2


@doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


torch.library.register_autograd("planted_working::doubled", lambda ctx, dy: dy * 2)


@torch.library.custom_op("planted_working::add_one_", mutates_args=("x",))
def add_one_(x: Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("planted_working::no_fake", mutates_args=())
def no_fake(x: Tensor) -> Tensor:
    return x.float() * 3  # which keeps no float64, and tells the compiler nothing


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 2 * x * dy


@dataclass
class Batch:
    x: Tensor
    lengths: list


Named = collections.namedtuple("Named", "mean rest")


def force(m, x):
    return torch.autograd.grad(m.fc(x).tanh().sum(), x, create_graph=True)[0]


def laplacian(m, x):
    (slope,) = torch.autograd.grad(m.fc(x).tanh().sum(), x, create_graph=True)
    return sum(torch.autograd.grad(slope[:, i].sum(), x, create_graph=True)[0][:, i] for i in range(2))


def jacobian(m, x):
    return torch.func.vmap(torch.func.jacrev(lambda y: m.fc(y).tanh()))(x)


def hessian(m, x):
    return torch.func.vmap(torch.func.hessian(lambda y: m.fc(y).tanh().sum()))(x)


def functional_grad(m, x):
    parameters = dict(m.fc.named_parameters())
    loss = lambda own: torch.func.functional_call(m.fc, own, (x,)).square().mean()  # noqa: E731
    return torch.func.grad(loss)(parameters)["weight"]


def forward_mode(m, x):
    return torch.func.jvp(lambda y: m.fc(y).tanh(), (x,), (torch.ones_like(x),))[1]


def cache(m, x):
    keys = m.fc(x)
    m.cache = keys if m.cache is None else torch.cat([m.cache, keys], 1)
    return m.cache.sum(1)


def static_cache(m, x):
    m.keys[:, m.at] = m.fc(x)[:, 0].detach()
    m.at = (m.at + 1) % 8
    return m.keys.sum(1)


def recurrent(m, x):
    m.h = torch.tanh(m.fc(x) + m.h)
    return m.h


def recurrent_in_place(m, x):
    y = torch.tanh(m.fc(x) + m.h)
    m.h.copy_(y)
    return y


def moving_mean(m, x):
    m.mean = torch.lerp(m.mean, m.fc.weight.mean(0), 0.1)
    return m.fc(x) - m.mean


def lengths(m, batch):
    batch.lengths.append(len(batch.x))
    return m.fc(batch.x)


def own_generator(m, x):
    return m.fc(x) + torch.randn(x.shape, generator=m.generator)


def made_on_demand(m, x):
    if not hasattr(m, "positions") or m.positions.shape[0] != x.shape[0]:
        m.positions = torch.arange(x.shape[0])
    return m.fc(x) + m.positions[:, None]


def remembered_size(m, x):
    m.last = x.shape
    return m.fc(x) * (1 + len(range(m.last[0])))


def inner_step(m, x):
    w = m.fc.weight.detach().clone().requires_grad_()
    for _ in range(2):
        (g,) = torch.autograd.grad((x @ w.T).square().mean(), w)
        w = (w - 0.1 * g).detach().requires_grad_()
    return F.linear(x, w) + m.fc(x)


def no_tensor_attributes(m, x):
    m.seen.setdefault("shapes", []).append(tuple(x.shape))
    return m.fc(x)


def normalised() -> dict:
    return {"fc": nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))}


def spectral() -> dict:
    return {"fc": nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))}


def x(*shape, **named):
    return lambda: (torch.randn(*(shape or (8, 16)), **named),)


wanting = {"requires_grad": True}
WORKING = {  # by name: the forward, what makes its parts, and its inputs
    "a derivative": (force, line, x(**wanting)),
    "second derivatives": (laplacian, line, x(**wanting)),
    "jacrev": (jacobian, line, x()),
    "hessian": (hessian, line, x()),
    "functional_call": (functional_grad, line, x()),
    "jvp": (forward_mode, line, x()),
    "vmap": (lambda m, x: torch.vmap(m.fc)(x), line, x()),
    "gradient steps inside": (inner_step, line, x()),
    "a cache that grows": (cache, lambda: line() | {"cache": None}, x(1, 1, 16)),
    "a cache that grows, no gradient": (
        cache, lambda: {"fc": nn.Linear(16, 16).requires_grad_(False), "cache": None}, x(1, 1, 16)),
    "a cache of fixed size": (static_cache, lambda: line() | {"keys": torch.zeros(2, 8, 16), "at": 0}, x(2, 1, 16)),
    "a recurrent buffer": (recurrent, lambda: line() | {"h": torch.zeros(8, 16)}, x()),
    "a recurrent buffer in place": (recurrent_in_place, lambda: line() | {"h": torch.zeros(8, 16)}, x()),
    "a buffer that keeps its graph": (moving_mean, lambda: line() | {"mean": torch.zeros(16)}, x()),
    "a custom operator": (lambda m, x: doubled(m.fc(x)), line, x()),
    "a custom operator that writes": (lambda m, x: add_one_(y := m.fc(x).detach()) or y, line, x()),
    "a custom operator that the compiler does not know": (lambda m, x: no_fake(x), dict, x()),
    "autograd.Function": (lambda m, x: Square.apply(m.fc(x)), line, x()),
    "checkpoint": (lambda m, x: checkpoint(lambda y: m.fc(y).tanh(), x, use_reentrant=False), line, x()),
    "weight norm": (lambda m, x: m.fc(x), normalised, x()),
    "spectral norm": (lambda m, x: m.fc(x), spectral, x()),
    "a dataclass": (lengths, line, lambda: (Batch(torch.randn(8, 16), []),)),
    "a dictionary, and a word": (lambda m, b: m.fc(b["x"]), line, lambda: ({"x": torch.randn(8, 16), "kind": "a"},)),
    "a named tuple": (lambda m, x: Named(m.fc(x).mean(), {"y": [m.fc(x)]}), line, x()),
    "a distribution": (lambda m, x: torch.distributions.Normal(m.fc(x), 1.0), line, x()),
    "a generator of its own": (own_generator, lambda: line() | {"generator": torch.Generator().manual_seed(3)}, x()),
    "random numbers": (lambda m, x: m.fc(x) + torch.randn_like(x) * torch.rand(1), line, x()),
    "dropout": (lambda m, x: F.dropout(m.fc(x), 0.3), line, x()),
    "made on demand": (made_on_demand, line, x()),
    "a size remembered": (remembered_size, lambda: line() | {"last": None}, x()),
    "a dictionary of its own": (no_tensor_attributes, lambda: line() | {"seen": {}}, x()),
    "complex weights": (
        lambda m, x: torch.fft.ifft(torch.fft.fft(x) * m.w).real,
        lambda: {"w": nn.Parameter(torch.randn(16, dtype=torch.cfloat))}, x()),
    "integers": (lambda m, x: m.fc(x).argmax(-1), line, x()),
    "a number of Python": (lambda m, x: m.fc(x).sum().item(), line, x()),
    "no parameters": (lambda m, x: x.sort(-1).values, dict, x()),
    "a sparse matrix": (lambda m, x: torch.sparse.mm(x.to_sparse(), m.fc.weight), line, x()),
    "edges": (
        lambda m, x, e, w: torch.zeros_like(x).index_add_(0, e[1], m.fc(x)[e[0]] * w[:, None]),
        line, lambda: (torch.randn(50, 16), torch.randint(0, 50, (2, 300)), torch.rand(300))),
    "no gradients": (lambda m, x: torch.no_grad()(m.fc)(x), line, x()),
    "a mode of inference": (lambda m, x: torch.inference_mode()(m.fc)(x), line, x()),
    "an empty batch": (lambda m, x: m.fc(x), line, x(0, 16)),
    "float64": (lambda m, x: m.fc(x), lambda: {"fc": nn.Linear(16, 16).double()}, x(8, 16, dtype=torch.float64)),
    "float16": (lambda m, x: m.fc(x), lambda: {"fc": nn.Linear(16, 16).half()}, x(8, 16, dtype=torch.float16)),
    "int8 weights": (
        lambda m, x: x @ (m.w.to(x.dtype) * 0.1), lambda: {"w": torch.randint(-9, 9, (16, 16), dtype=torch.int8)}, x()),
    "NumPy inside": (lambda m, x: m.fc(torch.from_numpy(x.numpy() * 2)), line, x()),
}  # fmt: skip


def made(name: str):
    run, parts, inputs = WORKING[name]
    torch.manual_seed(0)
    return Net(run, parts()), inputs()
