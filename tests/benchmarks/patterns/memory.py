"""What copies, layouts, changes in place and growing tensors cost in time."""

import copy
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn

from snippets.compiler.what_compile_does_traffic import nbytes
from snippets.patterns import memory as ways
from snippets.patterns import memory_in_place
from snippets.patterns.fusion_blocks import ResNetBlock
from tests.benchmarks import alike
from tests.benchmarks.bounds import bound
from tests.benchmarks.case import Call, Case, Point, Results, Variant, Workload
from tests.benchmarks.own import own
from tests.benchmarks.sides import compiled


def points(device: torch.device) -> Iterable[Point]:
    """Copies, a product, changes in place, growing tensors, and images in two layouts."""
    if device.type == "cpu":
        shape = {"batch": 4, "tokens": 128, "heads": 8, "head_dim": 64}
        yield Point(shape, "float32", modes=("calls",), part="copied")
        yield Point({"rows": 512, "columns": 1024}, "float32", modes=("calls",), part="changed")
        return
    yield Point({"batch": 8, "tokens": 4096, "heads": 32, "head_dim": 128}, "bfloat16", part="copied", name="copy")
    square = {"rows": 8192, "inner": 8192, "columns": 8192}
    yield Point(square, "bfloat16", modes=("burst",), part="matmul", name="matmul")
    in_place = ("eager", "written-over", "compile", "written-over-compile")
    yield Point({"rows": 16384, "columns": 4096}, "bfloat16", variants=in_place, part="changed", name="in place")
    allocated = ("eager", "written-over", "emptied")
    small = {"rows": 1024, "columns": 4096}
    yield Point(small, "bfloat16", "forward", ("calls",), allocated, "changed", "small in place")
    yield Point({"rows": 256, "columns": 65536}, "bfloat16", modes=("graph", "calls"), part="appended", name="append")
    image = {"batch": 64, "channels": 256, "side": 56}
    yield Point(image, "bfloat16", "forward", part="convolution", name="conv")
    yield Point(image, "bfloat16", "both", part="convolution", name="conv step")
    yield Point(image, "bfloat16", part="resnet", name="resnet block")


def prepare(point: Point, device: torch.device) -> Workload:
    made: dict[str, Callable[..., Workload]] = {
        "copied": of_copies,
        "matmul": of_a_product,
        "changed": of_changes,
        "appended": of_appending,
        "convolution": partial(of_an_image, False, point.direction == "both"),
        "resnet": partial(of_an_image, True, False),
    }
    return made[point.part](*point.shape.values(), getattr(torch, point.dtype), device)


SPOILT = alike.SPOILT | {
    "half of it lies a place further": alike.each(lambda y: torch.cat([y[: len(y) // 2], y[len(y) // 2 :].roll(1, 1)]))
}


# ---- the families ---------------------------------------------------------------------------------------------------


def of_copies(batch: int, tokens: int, heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> Workload:
    """The same bytes copied in order, with the heads brought outside, and as a transposed matrix."""
    x = torch.randn(batch, tokens, heads, head_dim, device=device).to(dtype)

    def transposed(x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2).contiguous()

    def untransposed(y: Tensor) -> Tensor:
        return y.transpose(1, 2).unflatten(2, (heads, head_dim))

    return alike.workload(
        {
            "in-order": torch.clone,
            "heads-outside": lambda x: x.transpose(1, 2).contiguous(),
            "transposed": transposed,
            "transposed-compile": compiled(own(transposed)),
        },
        [x],
        x.nbytes,
        flops=0,
        spoilt=SPOILT,
        seen={
            "heads-outside": lambda y: y.transpose(1, 2),
            "transposed": untransposed,
            "transposed-compile": untransposed,
        },
    )


def of_a_product(rows: int, inner: int, columns: int, dtype: torch.dtype, device: torch.device) -> Workload:
    """x @ w.T, with w as it lies, and copied to lie the other way."""
    x = torch.randn(rows, inner, device=device).to(dtype)
    w = (torch.randn(columns, inner, device=device) / inner**0.5).to(dtype)
    return alike.workload(
        {"as-it-lies": lambda x, w: x @ w.t(), "copied-first": lambda x, w: x @ w.t().contiguous()},
        [x, w],
        rows * columns * dtype.itemsize,
        flops=2 * rows * columns * inner,
        spoilt=SPOILT,
    )


def of_changes(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Workload:
    """Three pointwise steps, apart and in place; and where the allocator has to give its memory back each time."""
    x = torch.randn(rows, columns, device=device).to(dtype)

    def emptied(x: Tensor) -> Tensor:
        y = memory_in_place.apart(x)
        torch.cuda.empty_cache()
        return y

    return alike.workload(
        {
            "eager": memory_in_place.apart,
            "written-over": memory_in_place.in_place,
            "compile": compiled(own(memory_in_place.apart)),
            "written-over-compile": compiled(own(memory_in_place.in_place)),
            "emptied": emptied,
        },
        [x],
        x.nbytes,
        flops=3 * rows * columns,
        wrong={"not doubled": lambda x: (x + 1).relu()},
        spoilt=SPOILT,
    )


def of_appending(count: int, columns: int, dtype: torch.dtype, device: torch.device) -> Workload:
    steps = torch.randn(count, columns, device=device).to(dtype)
    functions = {"growing": ways.growing, "listed": ways.listed, "in-room": ways.in_room}
    return alike.workload(functions, [steps], steps.nbytes, flops=0, spoilt=SPOILT)


def of_an_image(
    block: bool, training: bool, batch: int, channels: int, side: int, dtype: torch.dtype, device: torch.device
) -> Workload:
    """A ResNet's bottleneck in inference, or a convolution alone, in training with its backward."""
    model: nn.Module = ResNetBlock(channels) if block else nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    model = model.to(device, dtype).eval()
    x, grad = (torch.randn(batch, channels, side, side, device=device).to(dtype) for _ in range(2))

    def step(module: Callable, weights: list[nn.Parameter], x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        if not training:
            with torch.no_grad():
                return (module(x),)
        x = x.detach().requires_grad_()
        y = module(x)
        return y, *torch.autograd.grad(y, (x, *weights), grad)

    def at(layout: torch.memory_format, compile_: bool) -> Variant:
        def build() -> Call:
            made = copy.deepcopy(model).to(memory_format=layout)
            called = torch.compile(made, dynamic=False) if compile_ else made
            given = (t.to(memory_format=layout) for t in (x, grad))
            call = partial(step, called, list(made.parameters()), *given)
            call()
            return call

        return Variant(build, named)

    def named(returned: object) -> Results:
        names = ("output", *(f"{name}.grad" for name in ("x", *dict(model.named_parameters())) if training))
        return dict(zip(names, returned, strict=True))  # type: ignore[call-overload]

    def reference() -> Results:
        exact = copy.deepcopy(model).double()
        return named(step(exact, list(exact.parameters()), x.double(), grad.double()))

    weights = sum(t.numel() for t in model.parameters() if t.dim() == 4)
    last, plain = torch.channels_last, torch.contiguous_format
    refused = "x.grad" if training else "output"
    return Workload(
        variants={
            "eager": at(plain, False),
            "channels-last": at(last, False),
            "compile": at(plain, True),
            "channels-last-compile": at(last, True),
        },
        baseline="eager",
        reference=reference,
        bytes_read=x.nbytes + nbytes(list(model.parameters())) + (x.nbytes if training else 0),
        bytes_written=x.nbytes * (2 if training else 1),
        flops=2 * batch * side**2 * weights * (3 if training else 1),
        wrong={
            "5% too large": lambda right: {**right, refused: 1.05 * right[refused]},
            "the last rows are not written": alike.each(alike.cut),
            "a neighbour's pixels": lambda right: {**right, refused: right[refused].roll(1, -1)},
        },
    )


# The size of the tensor that is copied.
copied = bound("MB", "batch * tokens * heads * size * width", batch=8, tokens=4096, heads=32, size=128, width=2)
# The size of the result that is put together.
result = bound("MB", "rows * columns * width", rows=256, columns=65536, width=2)

LABELS = {
    "in-order": {"label": "copied in order", "short": "in order", "role": "eager"},
    "heads-outside": {"label": "heads brought outside", "short": "heads outside", "role": "rewrite"},
    "transposed": {"label": "transposed", "role": "rewrite-2"},
    "transposed-compile": {"label": "transposed, compiled", "short": "compiled", "role": "compile"},
    "as-it-lies": {"label": "a transposed view", "short": "view", "role": "eager"},
    "copied-first": {"label": "copied first", "role": "rewrite"},
    "written-over": {"label": "eager, in place", "short": "in place", "role": "rewrite"},
    "written-over-compile": {"label": "compile, in place", "short": "in place, compile", "role": "compile-max"},
    "emptied": {"label": "eager, cache emptied", "short": "cache emptied", "role": "rewrite-2"},
    "growing": {"label": "torch.cat at each step", "short": "cat", "role": "eager"},
    "listed": {"label": "a list, stacked once", "short": "list", "role": "rewrite"},
    "in-room": {"label": "written into room for all", "short": "room", "role": "rewrite-2"},
    "channels-last": {"label": "eager, channels last", "short": "channels last", "role": "rewrite"},
    "channels-last-compile": {"label": "compile, channels last", "short": "last, compile", "role": "compile-max"},
}
CASE = Case(
    question="What do copies, layouts, changes in place and growing tensors cost?",
    check_at={
        "forward": [
            {"part": "copied", "batch": 2, "tokens": 16, "heads": 4, "head_dim": 64},
            {"part": "matmul", "rows": 64, "inner": 128, "columns": 256},
            {"part": "changed", "rows": 64, "columns": 1024},
            {"part": "appended", "rows": 64, "columns": 256},
            {"part": "resnet", "batch": 2, "channels": 64, "side": 8},
        ],
        "forward both": [{"part": "convolution", "batch": 2, "channels": 64, "side": 8}],
    },
)
