"""A Triton kernel in a compiled block, registered in four ways: what a call of each costs, and what the wall costs."""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from snippets.compiler.custom_kernels import EPS, WAYS, block, rms_cast, written_out
from snippets.compiler.what_compile_does import nbytes
from tests.benchmarks import wrong
from tests.benchmarks.bounds import bound, gpu
from tests.benchmarks.case import Call, Case, Point, Results, Variant, Workload
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
        function: Callable[..., Tensor] = called
        variants: dict[str, Call] = {name: partial(function, *inputs, norm=norm) for name, norm in WAYS.items()}
        variants["eager"] = partial(torch.nn.functional.rms_norm, x, (columns,), w, EPS)
    else:
        inputs = [x, residual, w]
        function = block_of
        variants = {name: compiled(norm, inputs) for name, norm in WAYS.items()}
        variants |= {"eager": lambda: block(x, residual, w, rms_norm), "compile": compiled(written_out, inputs)}
        variants["cast"] = compiled(rms_cast, inputs)

    def wrongly(spoil: Callable[..., Tensor]) -> Callable[[Results], Results]:
        return lambda baseline: results(spoil(*inputs))

    def build(name: str) -> Call:
        variants[name]()  # compiles
        return variants[name]

    order = sorted(variants, key=lambda name: name != "eager")
    return Workload(
        variants={name: Variant(partial(build, name), results) for name in order},
        baseline="eager",
        reference=lambda: results(function(*(t.detach().double() for t in inputs), norm=in_float64)),
        bytes_read=nbytes(inputs),
        bytes_written=x.numel() * dtype.itemsize,
        flops=10 * x.numel(),
        mix="triad" if point.part == "block" else "copy",
        wrong={
            "5% too large": wrongly(wrong.scaled(function)),
            "weight left out": wrongly(lambda *given: function(*given[:-1], torch.ones_like(w))),
            "last row not written": wrongly(lambda *given: cut(function(*given))),
        },
    )


def called(x: Tensor, w: Tensor, norm: Norm = written_out) -> Tensor:
    return norm(x, w, EPS)


def block_of(x: Tensor, residual: Tensor, w: Tensor, norm: Norm = written_out) -> Tensor:
    return block(x, residual, w, norm)


def compiled(norm: Norm, inputs: list[Tensor]) -> Call:
    return partial(torch.compile(own(block), dynamic=False), *inputs, norm)


def rms_norm(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return torch.nn.functional.rms_norm(x, w.shape, w, eps)


def in_float64(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return rms_norm(x, w, eps)


def cut(y: Tensor) -> Tensor:
    return torch.cat((y[:-1], torch.zeros_like(y[-1:])))


def results(found: object) -> Results:
    assert isinstance(found, Tensor)
    return {"output": found.detach()}


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
    points=points,
    prepare=prepare,
    check_at={"forward": [{"part": part, "rows": 16, "columns": 1024} for part in (OPERATOR, TRAINED, "block")]},
)
