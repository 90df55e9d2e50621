"""A Triton kernel in a compiled block, registered in four ways: what a call of each costs, and what the wall costs."""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from snippets.compiler.custom_kernels import EPS, WAYS, block, rms_cast, written_out
from tests.benchmarks import alike, wrong
from tests.benchmarks.bounds import bound, gpu
from tests.benchmarks.case import Case, Point, Workload
from tests.benchmarks.own import own

Norm = Callable[[Tensor, Tensor, float], Tensor]
OPERATOR, TRAINED = "operator", "operator with gradients"  # outside of compiled code


def points(device: torch.device) -> Iterable[Point]:
    """The operators by themselves, where only the host counts; and in a block (with other rows), small and large."""
    if device.type == "cpu":
        yield Point({"rows": 16, "columns": 256}, "float32", "forward", ("calls",), ("eager", "compile"), "block")
        return
    small, middle = {"rows": 64, "columns": 1024}, {"rows": 128, "columns": 1024}
    yield Point(small, "float32", "forward", ("calls",), part=OPERATOR, name=OPERATOR)
    yield Point(small, "float32", "forward", ("calls",), ("eager", *list(WAYS)[1:]), TRAINED, TRAINED)
    yield Point(middle, "float32", "forward", ("calls",), part="block", name="small block")
    yield Point({"rows": 8192, "columns": 4096}, "bfloat16", part="block", name="large block")
    yield Point({"rows": 8192, "columns": 4096}, "float32", part="block")


def prepare(point: Point, device: torch.device) -> Workload:
    """An operator alone, also on inputs that want gradients; or a block, with something around the norm."""
    rows, columns = point.shape.values()
    dtype = getattr(torch, point.dtype)
    x, residual = (torch.randn(rows, columns, device=device).to(dtype) for _ in range(2))
    w = (torch.rand(columns, device=device) + 0.5).to(dtype)
    if point.part != "block":
        inputs = [t.requires_grad_(point.part == TRAINED) for t in (x, w)]
        function: alike.Function = called
        functions = {"eager": rms_norm_called} | {name: partial(called, norm=norm) for name, norm in WAYS.items()}
    else:
        inputs = [x, residual, w]
        function = block_of
        norms = {**WAYS, "compile": written_out, "cast": rms_cast}
        functions = {"eager": partial(block_of, norm=rms_norm)} | {name: compiled(norm) for name, norm in norms.items()}
    return alike.workload(
        functions,
        inputs,
        x.numel() * dtype.itemsize,
        flops=10 * x.numel(),
        mix="triad" if point.part == "block" else "copy",
        results=lambda found: {"output": found.detach()},
        reference=partial(function, norm=rms_norm),
        wrong={
            "5% too large": wrong.scaled(function),
            "weight left out": lambda *given: function(*given[:-1], torch.ones_like(w)),
        },
        spoilt={"last row not written": alike.each(lambda y: torch.cat((y[:-1], torch.zeros_like(y[-1:]))))},
    )


def called(x: Tensor, w: Tensor, norm: Norm = written_out) -> Tensor:
    return norm(x, w, EPS)


def rms_norm_called(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, w.shape, w, EPS)


def block_of(x: Tensor, residual: Tensor, w: Tensor, norm: Norm = written_out) -> Tensor:
    return block(x, residual, w, norm)


def compiled(norm: Norm) -> alike.Function:
    return partial(torch.compile(own(block), dynamic=False), norm=norm)


def rms_norm(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return torch.nn.functional.rms_norm(x, w.shape, w, eps)


# How many times the bytes that are needed the three separate kernels move.
moved_over_needed = bound("x", "moved / needed", moved=7, needed=3)
# The block's time with a Triton kernel for the norm, over its time with everything fused.
longer_by_the_kernel = bound(
    "x", "ours / fused", ours=gpu("triton-op", "large block"), fused=gpu("compile", "large block")
)

LABELS = {
    "plain": {"label": "kernel, launched plainly", "short": "plain", "role": "ours"},
    "triton-op": {"label": "kernel, triton_op", "short": "triton_op", "role": "ours"},
    "custom-op": {"label": "kernel, custom_op", "short": "custom_op", "role": "ours"},
    "library": {"label": "kernel, Library", "short": "Library", "role": "ours"},
    "cast": {"label": "triton_op, eps cast to fp32", "short": "triton_op, cast", "role": "ours"},
}
CASE = Case(
    question="What does a Triton kernel in a compiled block cost, by the way in which it is registered?",
    check_at={"forward": [{"part": part, "rows": 16, "columns": 1024} for part in (OPERATOR, TRAINED, "block")]},
)
