"""A transformer block and a loss with exchangeable operations: what a kernel is worth inside a compiled model.

A kernel that wins alone can lose there, because the compiler cannot fuse across an operator that it does not look into.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snippets.validation.timing import Call
from tests.benchmarks import sides
from tests.benchmarks.case import Point, Results, Variant, Workload
from tests.benchmarks.sides import SUFFIX, Shapes, tupled

SHAPE = {"batch": 4, "tokens": 2048, "width": 2048}
HEAD = 128


def rms_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, 1e-6)


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    def one(t: Tensor) -> Tensor:
        first, second = t.chunk(2, -1)
        return t * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]

    return one(q), one(k)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def written_out(softmax: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Attention with its scores in memory, for operations on them."""
    return lambda q, k, v: softmax(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5) @ v


def gated(gate: Tensor, up: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(gate) * up


@dataclass(frozen=True)
class Operations:
    """What a block does between its matrix products; the defaults are plain PyTorch, as in Llama.

    Attributes:
        norm: (x, weight, bias) -> normed; weight and bias (width,).
        add_norm: (x, residual, weight, bias) -> (normed, x + residual); the norm of the sum if None.
        rotate: (q, k, cos, sin) -> (q, k); q and k (batch, heads, tokens, 128) as transposed views, cos and sin
            (1, tokens, 128).
        attention: (q, k, v) -> out.
        activation: (gate, up, weight, bias) -> hidden; gate and up (batch, tokens, 4 * width) are halves of one
            projection, weight and bias (4 * width,) for a norm in the MLP.
    """

    norm: Callable = rms_norm
    add_norm: Callable | None = None
    rotate: Callable = rotate
    attention: Callable = attention
    activation: Callable = gated


class Block(nn.Module):
    """A pre-norm transformer block: x (batch, tokens, width) to the same shape.

    Its matrices are twice as large as `nn.Linear` draws them. At its scale the scores are nearly equal, so attention is
    a mean over all tokens, which is next to nothing: a block without it, or without rotation, would pass the check.
    """

    def __init__(self, operations: Operations, width: int, tokens: int):
        super().__init__()
        self.operations = operations
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 8 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        with torch.no_grad():
            for linear in (self.qkv, self.out, self.up, self.down):
                linear.weight.mul_(2)
        self.weights = nn.ParameterList(torch.rand(n) + 0.5 for n in (width, width, 4 * width))
        self.biases = nn.ParameterList(torch.zeros(n) for n in (width, width, 4 * width))
        angles = torch.arange(tokens)[:, None] * 10000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
        for name, t in (("cos", angles.cos()), ("sin", angles.sin())):
            self.register_buffer(name, torch.cat((t, t), -1)[None])

    def forward(self, x: Tensor) -> Tensor:
        ops = self.operations
        batch, tokens, width = x.shape
        normed = ops.norm(x, self.weights[0], self.biases[0])
        heads = self.qkv(normed).view(batch, tokens, 3, width // HEAD, HEAD)
        q, k, v = (heads[:, :, i].transpose(1, 2) for i in range(3))
        q, k = ops.rotate(q, k, self.cos, self.sin)
        mixed = self.out(ops.attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width))
        if ops.add_norm is None:
            x = x + mixed
            normed = ops.norm(x, self.weights[1], self.biases[1])
        else:
            normed, x = ops.add_norm(mixed, x, self.weights[1], self.biases[1])
        gate, up = self.up(normed).chunk(2, -1)
        return x + self.down(ops.activation(gate, up, self.weights[2], self.biases[2]))


def points(device: torch.device, shape: dict[str, int] = SHAPE, name: str = "block") -> Iterator[Point]:
    """The forward and a whole step, on a GPU."""
    if device.type == "cuda":
        for direction in ("forward", "both"):
            called = name + SUFFIX[direction]
            yield Point(shape, "bfloat16", direction, variants=("eager", "compile", "ours"), name=called)


CHECK_AT = {  # of the same
    "forward backward both": [{"rows": 64, "columns": 1024}],
    "forward both": [{"batch": 1, "tokens": 64, "width": 256}],
}


def grid(device: torch.device, large: Shapes) -> Iterator[Point]:
    """The published grid of a kernel over rows, and the block."""
    yield from sides.grid(device, large, on_a_cpu={"rows": 256, "columns": 1024})
    yield from points(device)


def block_workload(point: Point, device: torch.device, plain: Operations, ours: Operations) -> Workload:
    """Three sides of one block with the same parameters: plain, plain compiled, and compiled with ours in it."""
    batch, tokens, width = point.shape.values()
    dtype = getattr(torch, point.dtype)
    block = Block(plain, width, tokens).to(device, dtype)
    x = torch.randn(batch, tokens, width, device=device).to(dtype)
    wrong = {name: with_operations(block, operations) for name, operations in wrong_operations(plain).items()}
    return module_workload(point, block, with_operations(block, ours), x, wrong=wrong, residual=True)


def wrong_operations(plain: Operations) -> dict[str, Operations]:
    """Of blocks whose results the check must refuse, by what is wrong with them."""
    return {
        "not rotated": replace(plain, rotate=lambda q, k, cos, sin: (q, k)),
        "without attention": replace(plain, attention=lambda q, k, v: torch.zeros_like(q)),
        "norms 5% too large": replace(plain, norm=lambda *arguments: 1.05 * plain.norm(*arguments)),
        "activation 10% too large": replace(plain, activation=lambda *arguments: 1.1 * plain.activation(*arguments)),
    }


def with_operations(block: Block, operations: Operations) -> Block:
    """The same parameters under other operations."""
    other = copy.copy(block)
    other.operations = operations
    return other


def module_workload(
    point: Point,
    plain: nn.Module,
    ours: nn.Module,
    *arguments: Tensor,
    wrong: Mapping[str, nn.Module],
    residual: bool = False,
) -> Workload:
    """Modules with the same parameters, called with the same arguments; the first argument gets a gradient.

    A step's gradients are those of the first argument and of all parameters; the first is held against float64.

    Args:
        wrong: modules whose results the check must refuse, by what is wrong with them.
        residual: whether the modules add to their first argument. Then what they add is held against float64, to the
            output and to the gradient: the argument itself is no merit of theirs, and would hide an error.
    """
    training = point.direction == "both"
    x, *rest = arguments
    with torch.no_grad():
        grad = torch.randn_like(tupled(plain(*arguments))[0])

    def build(module: Callable, leaf: Tensor, others: list, parameters: list, dy: Tensor) -> Call:
        def step() -> tuple[Tensor, ...]:
            if not training:
                with torch.no_grad():
                    return (module(leaf, *others),)
            y = module(leaf, *others)
            return y, torch.autograd.grad(y, (leaf, *parameters), dy, allow_unused=True)[0]

        return step

    def results(returned: object) -> Results:
        found = zip(("output", "x.grad"), (x, grad), returned, strict=False)  # type: ignore[call-overload]
        # in place: what a graph's replay must write anew is the very tensor that it returns
        return {name: t.detach().sub_(past) if residual else t for name, past, t in found}

    def wrongly(module: nn.Module) -> Callable[[Results], Results]:
        leaf = x.detach().requires_grad_(training)
        return lambda baseline: results(build(module, leaf, rest, list(module.parameters()), grad)())

    def variant(module: nn.Module, compile_it: bool) -> Variant:
        def side() -> Call:
            called = torch.compile(module, dynamic=False) if compile_it else module
            return build(called, x.detach().requires_grad_(training), rest, list(module.parameters()), grad)

        return Variant(side, results)

    def reference() -> Results:
        exact = copy.deepcopy(plain).double()
        leaf = x.detach().double().requires_grad_(training)
        others = [t.double() if t.is_floating_point() else t for t in rest]
        return results(build(exact, leaf, others, list(exact.parameters()), grad.double())())

    return Workload(
        variants={"eager": variant(plain, False), "compile": variant(plain, True), "ours": variant(ours, True)},
        baseline="eager",
        reference=reference,
        bytes_read=0,  # no bound is drawn: matrix products take most of the time
        bytes_written=0,
        flops=0,
        wrong={name: wrongly(module) for name, module in wrong.items()},
    )
