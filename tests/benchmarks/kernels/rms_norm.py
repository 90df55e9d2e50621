"""RMSNorm, forward and backward: what each implementation makes of the memory's bandwidth."""

from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from kernels import rms_norm as kernel
from snippets.validation.timing import Call
from tests.benchmarks.case import Case, Point, Results, Variant, Workload

EPS = 1e-6
LARGE = ((65536, 1024), (32768, 4096), (8192, 16384), (4096, 32768))  # 128 and 256 MiB in bf16: far beyond the L2
VERY_WIDE = (1024, 131072)  # no row of it fits into registers: the worst of the large shapes
UNEVEN = (16384, 9000)  # Triton widens accesses where 16 divides the row length: here it does not
SMALL = (256, 4096)  # as in decoding: launches rule
Function = Callable[[Tensor, Tensor], Tensor]


def points(device: torch.device) -> Iterator[Point]:
    """Each direction at the large shapes, a step at the small one; on a CPU a shape of its size."""
    if device.type == "cpu":
        for direction in ("forward", "backward"):
            shape = {"rows": 256, "columns": 1024}
            yield Point(shape, "float32", direction, modes=("calls",), variants=("eager", "compile"))
        return
    for rows, columns in (*LARGE, VERY_WIDE, UNEVEN):
        for direction in ("forward", "backward"):
            yield Point({"rows": rows, "columns": columns}, "bfloat16", direction)
    for direction in ("forward", "both"):
        shape = {"rows": SMALL[0], "columns": SMALL[1]}
        variants = ("eager", "compile", "ours", "liger", "quack")
        yield Point(shape, "bfloat16", direction, modes=("calls", "graph"), variants=variants)


def prepare(point: Point, device: torch.device) -> Workload:
    """Inputs shared by all variants; none of them may touch them."""
    rows, columns = point.shape.values()
    dtype = getattr(torch, point.dtype)
    x = torch.randn(rows, columns, device=device).to(dtype).requires_grad_(point.direction != "forward")
    weight = (torch.randn(columns, device=device) + 1).to(dtype).requires_grad_(point.direction != "forward")
    dy = torch.randn(rows, columns, device=device).to(dtype)
    step = {"forward": forward, "backward": backward, "both": both}[point.direction]
    names = {"forward": ("output",), "backward": ("x.grad", "weight.grad"), "both": ("output", "x.grad", "weight.grad")}

    def results(returned: object) -> Results:
        outputs = (returned,) if isinstance(returned, Tensor) else returned
        return dict(zip(names[point.direction], outputs, strict=True))  # type: ignore[call-overload]

    def variant(find: Callable[[], Function], ours: bool = False) -> Variant:
        def build() -> Call:
            return step(find(), x, weight, dy)

        return Variant(build, results, (lambda: binaries(build())) if ours else None)

    # x and dy once, dx or y once; weight, rstd and dweight are under a thousandth
    reads = {"forward": 1, "backward": 2, "both": 3}[point.direction]
    writes = {"forward": 1, "backward": 1, "both": 2}[point.direction]
    return Workload(
        variants={
            "eager": variant(lambda: eager),
            "compile": variant(compiled),
            "compile-max": variant(compiled_with_every_knob),
            "ours": variant(lambda: kernel.rms_norm, ours=True),
            "liger": variant(liger),
            "quack": variant(quack),
        },
        baseline="eager",
        reference=lambda: results(
            step(eager, *(t.detach().double().requires_grad_() for t in (x, weight)), dy.double())()  # type: ignore
        ),
        bytes_read=reads * x.nbytes,
        bytes_written=writes * x.nbytes,
        flops={"forward": 4, "backward": 10, "both": 14}[point.direction] * x.numel(),
        mix="copy" if point.direction == "forward" else "triad",
        largest_summands=largest_summands(x.detach(), weight.detach(), dy),
    )


def forward(function: Function, x: Tensor, weight: Tensor, dy: Tensor) -> Call:
    return lambda: function(x, weight)


def backward(function: Function, x: Tensor, weight: Tensor, dy: Tensor) -> Call:
    """The backward alone, again and again on one graph; compiled code must then keep its saved tensors."""
    with torch._functorch.config.patch(donated_buffer=False):
        y = function(x, weight)
        call = lambda: torch.autograd.grad(y, (x, weight), dy, retain_graph=True)  # noqa: E731
        call()
    return call


def both(function: Function, x: Tensor, weight: Tensor, dy: Tensor) -> Call:
    def step() -> tuple[Tensor, ...]:
        y = function(x, weight)
        return y, *torch.autograd.grad(y, (x, weight), dy)

    return step


def eager(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, EPS)


def compiled() -> Function:
    return torch.compile(eager, dynamic=False)


def compiled_with_every_knob() -> Function:
    knobs = torch._inductor.list_mode_options("max-autotune-no-cudagraphs") | {"coordinate_descent_tuning": True}
    return torch.compile(eager, dynamic=False, options=knobs)


def liger() -> Function:
    """Computing in fp32 throughout, as F.rms_norm does, and leaving dy alone."""
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return lambda x, weight: LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "gemma", False)


def quack() -> Function:
    from quack import rmsnorm

    return lambda x, weight: rmsnorm(x, weight, eps=EPS)


def largest_summands(x: Tensor, weight: Tensor, dy: Tensor) -> Mapping[str, float]:
    """Of the gradients' sums, from the formulas in the kernel file, in fp32: x_hat, g and their mean."""
    x_hat, g = F.rms_norm(x.float(), x.shape[-1:], None, EPS), dy.float() * weight.float()
    rstd = (x.float().square().mean(-1, keepdim=True) + EPS).rsqrt()
    mean = (g * x_hat).mean(-1, keepdim=True)
    return {
        "x.grad": (torch.maximum(g.abs(), (x_hat * mean).abs()) * rstd).max().item(),
        # a partial sum is a summand too; the last one is the result
        "weight.grad": max((dy.float() * x_hat).abs().max().item(), (dy.float() * x_hat).sum(0).abs().max().item()),
    }


def binaries(call: Call) -> Mapping[str, object]:
    """The compiled kernels of ours that a call launches, by name."""
    launched = []
    hook = lambda metadata: launched.append(metadata.get()["function"])  # noqa: E731
    triton.knobs.runtime.launch_enter_hook.add(hook)
    try:
        call()
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(hook)
    functions = {name: f for name, f in vars(kernel).items() if isinstance(f, triton.runtime.JITFunction)}
    return {
        name: binary
        for name, function in functions.items()
        for caches in function.device_caches.values()
        for binary in caches[0].values()
        if binary.function in launched
    }


CASE = Case(
    name="kernels/rms-norm",
    question="How close does RMSNorm come to the memory's bandwidth, forward and backward?",
    sources=("kernels/rms_norm.py",),
    points=points,
    prepare=prepare,
)
