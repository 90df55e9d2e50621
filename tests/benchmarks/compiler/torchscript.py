"""Where TorchScript stands today: five components, eager, scripted and compiled."""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from snippets.compiler.torchscript import COMPONENTS, block
from snippets.compiler.torchscript_refused import scripted
from snippets.compiler.what_compile_does_traffic import nbytes
from tests.benchmarks import wrong
from tests.benchmarks.case import Call, Case, Point, Results, Variant, Workload
from tests.benchmarks.own import own

HEADS, WIDTH = 16, 64
TRAINED = "norm", "gated", "block"  # components whose step is timed as well
NARROW = "rotated", "block"
NAMES = {"norm": "rms norm", "gated": "swiglu", "masked-softmax": "masked softmax", "rotated": "rope"}  # on pages


def points(device: torch.device) -> Iterable[Point]:
    """Each component small, where the host decides, and large, where the GPU does."""
    if device.type == "cpu":
        yield Point({"rows": 256, "columns": 256}, "float32", "forward", ("calls",), part="norm")
        shape = {"rows": 128, "columns": 1024}
        yield Point(shape, "float32", "forward", ("calls",), ("eager", "script"), "block")
        return
    large = {name: {"rows": 16384, "columns": 1024 if name in NARROW else 4096} for name in COMPONENTS}
    for name in COMPONENTS:
        called = NAMES.get(name, name)
        small = {"rows": 256, "columns": 1024}
        yield Point(small, "bfloat16", "forward", ("calls",), part=name, name=f"small {called}")
        yield Point(large[name], "bfloat16", "forward", part=name, name=called)
    for name in TRAINED:
        yield Point(large[name], "bfloat16", "both", part=name, name=f"{NAMES.get(name, name)} step")


def inputs_of(name: str, rows: int, columns: int, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Of a component; rows are the tokens, of up to 2048 in a sequence."""

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    if name == "norm":
        return [randn(rows, columns), 1 + randn(columns)]
    if name == "gated":
        return [randn(rows, columns), randn(rows, columns)]
    if name == "masked-softmax":
        mask = torch.rand(rows, columns, device=device) < 0.9
        mask[:, 0] = True  # a row without any is not a number
        return [randn(rows, columns), mask]
    length = min(rows, 2048)
    if name == "rotated":
        angles = torch.outer(torch.arange(length, device=device), torch.logspace(0, -4, WIDTH // 2, device=device))
        tables = [make(angles).repeat(1, 2).to(dtype) for make in (torch.cos, torch.sin)]
        return [randn(rows // length, columns // WIDTH, length, WIDTH), *tables]
    scale = columns**-0.5
    weights = [scale * randn(size, columns) for size in (3 * columns, columns, 4 * columns)]
    return [randn(rows // length, length, columns), *weights, scale / 2 * randn(columns, 4 * columns)]


def prepare(point: Point, device: torch.device) -> Workload:
    """All variants get the same inputs; a step is a forward and the gradients of all inputs."""
    rows, columns = point.shape.values()
    name, dtype = point.part, getattr(torch, point.dtype)
    heads = columns // WIDTH
    function = COMPONENTS[name]
    inputs = inputs_of(name, rows, columns, device, dtype)
    others = (heads,) if function is block else ()
    trained = point.direction == "both"
    if trained:
        inputs = [t.requires_grad_() for t in inputs]
    y = function(*inputs, *others)
    dy = torch.randn(y.shape, device=device).to(dtype)
    written = y.numel() * dtype.itemsize

    def call(run: Callable[..., Tensor], inputs: list[Tensor] = inputs, dy: Tensor = dy) -> object:
        y = run(*inputs, *others)
        return (y, *torch.autograd.grad(y, inputs, dy)) if trained else y

    made = {
        "eager": lambda: function,
        "script": lambda: scripted(function),
        "compile": lambda: torch.compile(own(function), dynamic=False),
    }

    def build(variant: str) -> Call:
        ready = partial(call, made[variant]())
        for _ in range(3):  # TorchScript watches the first calls, and generates code after them
            ready()
        return ready

    def reference() -> Results:
        exact = [t.detach().double() if t.is_floating_point() else t for t in inputs]
        if trained:
            exact = [t.requires_grad_() for t in exact]
        return results(call(function, exact, dy.double()))

    def wrongly(spoil: Callable[..., Tensor]) -> Callable[[Results], Results]:
        return lambda baseline: results(call(spoil))

    return Workload(
        variants={variant: Variant(partial(build, variant), results) for variant in made},
        baseline="eager",
        reference=reference,
        bytes_read=nbytes(inputs) * (2 if trained else 1) + (2 * written if trained else 0),
        bytes_written=written + (nbytes(inputs) if trained else 0),
        flops=2 * rows * columns * columns * 12 * (3 if trained else 1) if function is block else 10 * y.numel(),
        mix="triad" if name == "gated" else "copy",
        wrong={
            "5% too large": wrongly(wrong.scaled(function)),
            "the last row is the first": wrongly(
                lambda x, *rest: function(torch.cat((x[..., :-1, :], x[..., :1, :]), -2), *rest)
            ),
            "a tenth of the second input left out": wrongly(
                lambda x, second, *rest: function(
                    x, second * (torch.arange(second.shape[-1], device=device) % 10 > 0), *rest
                )
            ),
        },
    )


def results(found: object) -> Results:
    names = ("output", *(f"gradient {number}" for number in range(1, 6)))
    tensors = found if isinstance(found, tuple) else (found,)
    return dict(zip(names, tensors, strict=False))


LABELS = {"script": {"label": "torch.jit.script", "short": "script", "role": "rewrite-2"}}
CASE = Case(
    question="Where does TorchScript stand today beside eager PyTorch and torch.compile?",
    check_at={
        "forward": [{"part": part, "rows": 64, "columns": 1024} for part in ("masked-softmax", "rotated")],
        "forward both": [{"part": part, "rows": 64, "columns": 256} for part in TRAINED],
    },
)
