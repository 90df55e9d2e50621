"""SwiGLU and GeGLU, forward and backward: what each implementation makes of the memory's bandwidth.

The case times SwiGLU of two tensors; "halves" are two halves of one, as a fused projection leaves them; "geglu_tanh"
has approximate="tanh". Shapes (batch, tokens, width) and (tokens, width, hidden): inside a compiled block and an MLP.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

from kernels import swiglu as kernel
from tests.benchmarks import blocks, sides, wrong
from tests.benchmarks.bounds import bound, ceiling, h100, traffic
from tests.benchmarks.case import Case, Point, Workload

LARGE = sides.shapes({
    "narrow": (131072, 1024), "4k columns": (32768, 4096), "llama 2": (16384, 11008), "typical": (16384, 14336),
    "wide": (8192, 28672),
})  # fmt: skip
PARTS = {"geglu": ("4k columns", "typical"), "geglu_tanh": ("typical",), "halves": ("typical",)}
GELU = {"geglu": "none", "geglu_tanh": "tanh"}
MLP = {"tokens": 8192, "width": 4096, "hidden": 14336}  # as in Llama 3 8B
# forward and backward, an element, by the kernel's formulas
FLOPS = {"silu": (5, 11), "none": (25, 31), "tanh": (9, 17)}


def points(device: torch.device) -> Iterator[Point]:
    yield from sides.grid(device, LARGE, on_a_cpu={"rows": 256, "columns": 1024})
    yield from blocks.points(device)
    if device.type == "cuda":
        for part, names in PARTS.items():
            yield from sides.of_part(part, {name: LARGE[name] for name in names})
            if part != "geglu_tanh":
                yield Point(
                    {**LARGE["typical"], **sides.FEW}, "bfloat16", "forward", ("calls", "graph"), sides.SMALL, part
                )
        yield Point(MLP, "bfloat16", "both", variants=("eager", "compile", "ours"), name="mlp step")


def prepare(point: Point, device: torch.device) -> Workload:
    if "batch" in point.shape:
        with_views = blocks.Operations(activation=lambda gate, up, weight, bias: kernel.swiglu(gate, up))
        return blocks.block_workload(point, device, blocks.Operations(), with_views)
    dtype = getattr(torch, point.dtype)
    if "hidden" in point.shape:
        tokens, width, hidden = point.shape.values()
        plain = Llama(width, hidden, eager(None)).to(device, dtype)
        with_ours = plain.under(kernel.swiglu)  # gate and up stay in one tensor, and so do their gradients
        mutants = {name: plain.under(function) for name, function in wrong_functions(None).items()}
        x = torch.randn(tokens, width, device=device).to(dtype)
        return blocks.module_workload(point, plain, with_ours, x, wrong=mutants)
    size = point.shape["rows"], point.shape["columns"]
    if point.part == "halves":
        inputs = {"x": torch.randn(size[0], 2 * size[1], device=device).to(dtype)}
    else:
        inputs = {name: torch.randn(size, device=device).to(dtype) for name in ("gate", "up")}
    gelu = GELU.get(point.part)
    functions: dict[str, sides.Find | sides.Side] = {
        "eager": lambda: eager(gelu),
        "ours": lambda: our(gelu),
        "liger": sides.Side(lambda: liger(gelu, len(inputs)), overwrites=("backward", "both")),
    }
    if gelu == "none":
        functions["first-draft"] = lambda: FirstDraft.apply
    forward, backward = FLOPS[gelu or "silu"]
    elements = size[0] * size[1]
    width = elements * dtype.itemsize
    return sides.workload(
        point,
        kernel,
        inputs,
        functions,
        # gate and up, and y or its gradient; y or the gradients of gate and up
        bytes_read={"forward": 2, "backward": 3, "both": 5}[point.direction] * width,
        bytes_written={"forward": 1, "backward": 2, "both": 3}[point.direction] * width,
        flops={"forward": forward, "backward": backward, "both": forward + backward}[point.direction] * elements,
        mix="triad",
        wrong=wrong_functions(gelu),
    )


def halved(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """gate and up, of one tensor or two."""
    return inputs if len(inputs) == 2 else inputs[0].chunk(2, -1)


def eager(gelu: str | None) -> sides.Function:
    def function(*inputs: Tensor) -> Tensor:
        gate, up = halved(inputs)
        return (F.gelu(gate, approximate=gelu) if gelu else F.silu(gate)) * up

    return function


def our(gelu: str | None) -> sides.Function:
    if gelu is None:
        return kernel.swiglu
    return lambda gate, up: kernel.geglu(gate, up, gelu)


def liger(gelu: str | None, tensors: int) -> sides.Function:
    """Its backwards write the gradients over gate and up, but for that of one tensor with both, which does on request.

    That one is left at its default: in place it refuses a second backward of the same graph.
    """
    from liger_kernel.ops.geglu import LigerGELUMulFunction
    from liger_kernel.ops.swiglu import LigerFusedGateUpSiLUMulFunction, LigerSiLUMulFunction

    if gelu == "none":
        raise NotImplementedError("Liger-Kernel has GeGLU with the tanh approximation only")
    if gelu:
        return LigerGELUMulFunction.apply
    return LigerSiLUMulFunction.apply if tensors == 2 else LigerFusedGateUpSiLUMulFunction.apply


# ---- the first version of GeGLU, with the library's erf; for sizes that BLOCK divides -------------------------------


@triton.jit
def _draft_forward_kernel(gate_ptr, up_ptr, y_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gate, up = tl.load(gate_ptr + places).to(tl.float32), tl.load(up_ptr + places).to(tl.float32)
    tl.store(y_ptr + places, 0.5 * gate * (1 + tl.erf(gate * 0.7071067811865476)) * up)


@triton.jit
def _draft_backward_kernel(dy_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, BLOCK: tl.constexpr):  # type: ignore
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    dy = tl.load(dy_ptr + places).to(tl.float32)
    gate, up = tl.load(gate_ptr + places).to(tl.float32), tl.load(up_ptr + places).to(tl.float32)
    phi = 0.5 * (1 + tl.erf(gate * 0.7071067811865476))
    tl.store(dgate_ptr + places, dy * up * (phi + gate * tl.exp(-0.5 * gate * gate) * 0.3989422804014327))
    tl.store(dup_ptr + places, dy * gate * phi)


class FirstDraft(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        y = torch.empty_like(gate)
        _draft_forward_kernel[(y.numel() // 1024,)](gate, up, y, BLOCK=1024)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        dgate, dup = torch.empty_like(gate), torch.empty_like(up)
        _draft_backward_kernel[(dy.numel() // 1024,)](dy, gate, up, dgate, dup, BLOCK=1024)
        return dgate, dup


# ---- inside a model -------------------------------------------------------------------------------------------------


class Llama(nn.Module):
    """The MLP of a Llama block, gate and up in one projection: x (tokens, width) to the same shape."""

    def __init__(self, width: int, hidden: int, activation: sides.Function):
        super().__init__()
        self.up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))

    def under(self, activation: sides.Function) -> "Llama":
        """The same parameters under another activation."""
        other = copy.copy(self)
        other.activation = activation
        return other


def wrong_functions(gelu: str | None) -> Mapping[str, sides.Function]:
    right, other = eager(gelu), eager(None if gelu else "none")

    def not_activated(*inputs: Tensor) -> Tensor:
        gate, up = halved(inputs)
        return gate * up

    return {
        "10% too large": wrong.scaled(right, 1.1),
        "last tile not written": wrong.cut(right),
        "another activation": other,
        "not activated": not_activated,
    }


TRIAD = ceiling("triad", case="kernels/swiglu")
TENSOR = {"rows": 16384, "columns": 14336, "width": 2}
# What the forward reads and writes, each number once; and what that takes at the rate of two reads per write.
forward_bytes, forward_at_least = traffic(3, TENSOR, triad=TRIAD)
# What the backward reads and writes, each number once; and what that takes at the rate of two reads per write.
backward_bytes, backward_at_least = traffic(5, TENSOR, triad=TRIAD)
# Instructions that can be issued while the memory moves one element of the forward.
forward_budget = bound("", "flops / 2 / (triad / (3 * width))", width=2, flops=h100("float32"), triad=TRIAD)
# Instructions that can be issued while the memory moves one element of the backward.
backward_budget = bound("", "flops / 2 / (triad / (5 * width))", width=2, flops=h100("float32"), triad=TRIAD)

LABELS = {"first-draft": {"label": "first draft", "role": "eager"}}
CASE = Case(
    question="What is left to win where the compiler is at the roofline: SwiGLU, GeGLU, and halves of one projection?",
    check_at={
        "forward backward both": [{"part": part, "rows": 64, "columns": 1024} for part in ("", *PARTS)],
        "forward both": [{"batch": 1, "tokens": 64, "width": 256}],
        "both": [{"tokens": 64, "width": 256, "hidden": 896}],
    },
)
