"""Softmax with dropout: what each implementation makes of the memory's bandwidth, with the mask stored or not.

Every implementation draws a mask of its own, so no two results are alike, and none is held against another. Each is
held against float64 under its own mask, which its output shows: the results that are checked are softmax and its
gradient without dropout plus the *error* under the mask, and the share that was kept, whose reference is 1 - p. So a
wrong softmax, a gradient with another mask than the output's, and a wrong rate all fail.

Inside a block no output shows the mask. There the results say how far dropout moves what the block adds to its
residual stream, forward and backward, from what a block without dropout adds: by how much (the spread), and by how much
along its own direction (the drift, which is small, since dropout keeps the mean). Both are sums over millions of
elements, of which chance leaves next to nothing: a block without dropout, one with another rate or without the scale
is off by far more.
"""

import copy
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels import softmax_dropout as kernel
from snippets.validation.timing import Call
from tests.benchmarks import blocks, sides
from tests.benchmarks import wrong as mutants
from tests.benchmarks.bounds import bound, ceiling, h100, traffic
from tests.benchmarks.case import Case, Point, Results, Variant, Workload

P = 0.1
LARGE = sides.shapes({
    "narrow": (65536, 1024), "2k columns": (65536, 2048), "typical": (32768, 4096), "wide": (8192, 16384),
    "wider": (4096, 32768), "odd": (16384, 9000),
})  # fmt: skip
CAPPED, CAP = "capped", 30  # as Gemma 2's scores


def points(device: torch.device) -> Iterator[Point]:
    yield from sides.grid(device, LARGE, on_a_cpu={"rows": 256, "columns": 1024})
    if device.type == "cuda":  # dropout is for training: whole steps
        for part, name in (("", "block step"), (CAPPED, "block p 0.3 step")):
            yield Point(blocks.SHAPE, "bfloat16", "both", variants=("eager", "compile", "ours"), part=part, name=name)


def prepare(point: Point, device: torch.device) -> Workload:
    return inside(point, device) if "batch" in point.shape else alone(point, device)


def eager(x: Tensor) -> Tensor:
    return F.dropout(F.softmax(x, -1), P)


def ours(x: Tensor) -> Tensor:
    return kernel.softmax_dropout(x, P)


# ---- the op alone ---------------------------------------------------------------------------------------------------


def alone(point: Point, device: torch.device) -> Workload:
    rows, columns = point.shape.values()
    dtype = getattr(torch, point.dtype)
    x = torch.randn(rows, columns, device=device).to(dtype)
    dy = (torch.randn(rows, columns, device=device) + 1).to(dtype)  # a mean, or the gradient's second term is small
    step = {"forward": sides.forward, "backward": backward, "both": sides.both}[point.direction]
    finders: dict[str, sides.Find] = {
        "eager": lambda: eager,
        "compile": lambda: sides.compiled(eager),
        "compile-max": lambda: sides.every_knob_at(point, eager),
        "ours": lambda: ours,
    }

    def called(function: sides.Function) -> Call:
        return step(function, (x.detach().requires_grad_(point.direction != "forward"),), (), (dy,))

    def found(returned: object, scale: float = 1 / (1 - P)) -> Results:
        return under_its_mask(point.direction, scale, x, dy, *sides.tupled(returned))  # type: ignore[arg-type]

    def wrongly(function: sides.Function) -> Callable[[Results], Results]:
        return lambda baseline: found(called(function)())

    def variant(name: str, find: sides.Find) -> Variant:
        def build() -> Call:
            return called(find())

        def results(returned: object) -> Results:
            return found(returned, kernel._odds(P)[1]) if name == "ours" else found(returned)  # ours: P in 16 bits

        of_ours = (lambda: sides.binaries(kernel, build())) if name == "ours" else None
        return Variant(build, results, of_ours, chooses_by_timing=name == "compile-max")

    names = {"forward": ("output", "kept"), "backward": ("x.grad",), "both": ("output", "kept", "x.grad")}

    def reference() -> Results:
        y = F.softmax(x.double(), -1)
        exact = {"output": y, "kept": y.new_tensor(1 - P), "x.grad": softmax_gradient(y, dy)}
        return {name: exact[name] for name in names[point.direction]}

    s = F.softmax(x, -1, dtype=torch.float32)
    g_s = dy * s / (1 - P)
    return Workload(
        variants={name: variant(name, find) for name, find in finders.items()},
        baseline="eager",
        reference=reference,
        # x once, y once; x and dy once, dx once. No mask: it can be made from a number
        bytes_read={"forward": 1, "backward": 2, "both": 3}[point.direction] * x.nbytes,
        bytes_written={"forward": 1, "backward": 1, "both": 2}[point.direction] * x.nbytes,
        flops={"forward": 5, "backward": 8, "both": 13}[point.direction] * x.numel(),
        mix="copy" if point.direction == "forward" else "triad",
        largest_summands={
            "output": s.max().item() / (1 - P),
            "x.grad": max(g_s.abs().max().item(), (s * g_s.sum(-1, keepdim=True)).abs().max().item()),
        },
        wrong={name: wrongly(function) for name, function in wrong_functions(point.direction).items()},
    )


def backward(function: sides.Function, leaves: tuple, rest: tuple, grads: tuple | None) -> Call:
    """The backward alone, again and again on one graph; it returns that graph's output, too, which shows the mask."""
    outputs: list[Tensor] = []

    def noting(x: Tensor) -> Tensor:
        outputs.append(function(x))  # type: ignore[arg-type]
        return outputs[0]

    call = sides.backward(noting, leaves, rest, grads)
    return lambda: (outputs[0], *call())  # type: ignore[misc]


@torch.no_grad()
def under_its_mask(direction: str, scale: float, x: Tensor, dy: Tensor, y: Tensor, *gradients: Tensor) -> Results:
    """Softmax and its gradient plus the error of this output and gradient under its mask; and the share that was kept.

    What the call computed is spoilt after the look, so that a replay that does nothing leaves nothing right behind.
    """
    found: dict[str, Tensor] = {}
    factor = (y != 0) * scale
    s = F.softmax(x.double(), -1)
    if direction != "backward":
        found["output"] = (s + (y - s * factor)).to(x.dtype)
        found["kept"] = (y != 0).double().mean().bfloat16()  # its eps is the allowance for chance
        y.detach().fill_(float("nan"))
    for dx in gradients:
        found["x.grad"] = (softmax_gradient(s, dy) + (dx - softmax_gradient(s, dy * factor))).to(x.dtype)
        dx.fill_(float("nan"))
    return found


def softmax_gradient(s: Tensor, dy: Tensor) -> Tensor:
    g_s = dy * s
    return g_s - s * g_s.sum(-1, keepdim=True)


def wrong_functions(direction: str) -> dict[str, sides.Function]:
    def other_mask_in_backward(x: Tensor) -> Tensor:
        y = eager(x)
        return eager(x).detach() + (y - y.detach())

    functions = {
        "5% too large": mutants.scaled(eager),
        "nothing dropped": lambda x: F.softmax(x, -1),
        "not scaled": lambda x: (1 - P) * eager(x),
        "dropped twice as often": lambda x: F.dropout(F.softmax(x, -1), 2 * P),
    }
    return functions | ({} if direction == "forward" else {"another mask in the backward": other_mask_in_backward})


# ---- inside a block -------------------------------------------------------------------------------------------------


def attention(op: Callable[[Tensor], Tensor], capped: bool) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Attention with dropout; capped scores are squashed first, and no fused attention of PyTorch fits."""
    return blocks.written_out((lambda scores: op(CAP * torch.tanh(scores / CAP))) if capped else op)


def inside(point: Point, device: torch.device) -> Workload:
    batch, tokens, width = point.shape.values()
    dtype = getattr(torch, point.dtype)
    plain, own, without = (
        blocks.Operations(attention=attention(op, point.part == CAPPED))
        for op in (eager, ours, lambda x: F.softmax(x, -1))
    )
    block = blocks.Block(plain, width, tokens).to(device, dtype)
    with torch.no_grad():
        block.qkv.weight.mul_(1.5)  # attention is then half of what the block adds, and dropout moves it visibly
    x = torch.randn(batch, tokens, width, device=device).to(dtype)
    dy = torch.randn(batch, tokens, width, device=device).to(dtype)

    def step(module: nn.Module, x: Tensor, dy: Tensor, compile_it: bool = False) -> Callable[[], tuple[Tensor, Tensor]]:
        called = torch.compile(module, dynamic=False) if compile_it else module
        leaf, parameters = x.detach().requires_grad_(), list(module.parameters())

        def call() -> tuple[Tensor, Tensor]:
            y = called(leaf)
            return y, torch.autograd.grad(y, (leaf, *parameters), dy, allow_unused=True)[0]

        return call

    exact = copy.deepcopy(block).double()
    still = tuple(t.detach() for t in step(blocks.with_operations(exact, without), x.double(), dy.double())())

    def exactly(returned: tuple[Tensor, Tensor]) -> Results:
        y, dx = returned
        return moved("output", y, still[0], x) | moved("x.grad", dx, still[1], dy)

    def results(returned: object) -> Results:
        return {name: t.bfloat16() for name, t in exactly(returned).items()}  # type: ignore[arg-type]

    def wrongly(op: sides.Function) -> Callable[[Results], Results]:
        module = blocks.with_operations(block, blocks.Operations(attention=attention(op, point.part == CAPPED)))  # type: ignore
        return lambda baseline: results(step(module, x, dy)())

    return Workload(
        wrong={name: wrongly(op) for name, op in wrong_inside().items()},
        variants={
            "eager": Variant(lambda: step(block, x, dy), results),
            "compile": Variant(lambda: step(block, x, dy, True), results),
            "ours": Variant(lambda: step(blocks.with_operations(block, own), x, dy, True), results),
        },
        baseline="eager",
        reference=lambda: exactly(step(exact, x.double(), dy.double())()),
        bytes_read=0,  # no bound is drawn: matrix products take most of the time
        bytes_written=0,
        flops=0,
        # an allowance for chance of two eps, where no dropout or the wrong rate is off by a tenth and more
        largest_summands={f"{name} {what}": 2.0 for name in ("output", "x.grad") for what in ("spread", "drift")},
    )


@torch.no_grad()
def moved(name: str, t: Tensor, still: Tensor, past: Tensor) -> Results:
    """How far dropout moves what the block adds to its residual stream: its length, and its share along the way."""
    added, change = still - past, t - still
    spread = change.square().mean().sqrt() / added.square().mean().sqrt()
    drift = (change * added).sum() / added.square().sum()
    return {f"{name} spread": spread, f"{name} drift": drift}


def wrong_inside() -> dict[str, sides.Function]:
    return {
        "nothing dropped": lambda x: F.softmax(x, -1),
        "not scaled": lambda x: (1 - P) * eager(x),
        "dropped twice as often": lambda x: F.dropout(F.softmax(x, -1), 2 * P),
    }


COPY = ceiling("copy", case="kernels/softmax-dropout")
TRIAD = ceiling("triad", case="kernels/softmax-dropout")
TENSOR = {"rows": 32768, "columns": 4096, "width": 2}
# What the forward reads and writes, each number once; and what that takes at the rate of a copy.
forward_bytes, forward_at_least = traffic(2, TENSOR, copy=COPY)
# What the backward reads and writes, each number once; and what that takes at the rate of two reads per write.
backward_bytes, backward_at_least = traffic(3, TENSOR, triad=TRIAD)
# Instructions that can be issued while a copy moves one element.
instruction_budget = bound("", "flops / 2 / (copy / (2 * width))", flops=h100("float32"), width=2, copy=COPY)
# Instructions for one random number if a call of Philox gives one.
one_number_a_call = bound("", "rounds * (products + mixes)", rounds=10, products=2, mixes=2)
# Instructions for one random number if all four words of a call are used.
four_numbers_a_call = bound("", "rounds * (products + mixes) / words", rounds=10, products=2, mixes=2, words=4)
# Instructions for one random number of 16 bits, with seven rounds.
eight_numbers_a_call = bound("", "rounds * (products + mixes) / numbers", rounds=7, products=2, mixes=2, numbers=8)
# The rate of zeros nearest to 0.1 that eight bits can say.
rate_in_eight_bits = bound("", "threshold / 256", threshold=26)
# Attention scores of a layer in two bytes each.
kept_without_mask = bound("GB", "batch * heads * tokens * tokens * 2", batch=4, heads=16, tokens=2048)
# Attention scores of a layer in two bytes each, and a byte of mask.
kept_with_mask = bound("GB", "batch * heads * tokens * tokens * 3", batch=4, heads=16, tokens=2048)
eager_bytes = bound("", "4 * width + 1", width=2)  # What two kernels move for each element, and a byte of mask.
fused_bytes = bound("", "2 * width", width=2)  # What one kernel moves for each element.
unused_numbers = bound("", "padded - columns", columns=9000)  # Random numbers that no column of a padded row uses.
# One row, spread over the threads of a program.
elements_of_a_thread = bound("", "columns / threads", columns=4096, threads=128)

CASE = Case(
    question="What does dropout cost after a softmax, if its mask is never stored?",
    check_at={  # 512 tokens in a block: what chance leaves of dropout falls with the size
        "forward backward both": [{"rows": 64, "columns": 1024}],
        "both": [
            {"batch": 1, "tokens": 512, "width": 256},
            {"batch": 1, "tokens": 512, "width": 256, "part": "capped"},
        ],
    },
)
