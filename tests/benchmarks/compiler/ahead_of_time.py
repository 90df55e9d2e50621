"""What a call of a loaded package costs beside eager PyTorch and torch.compile, with one package for all batches."""

import contextlib
import copy
import functools
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from snippets.compiler.ahead_of_time_model import MOST, Served
from snippets.compiler.compile_time_model import Size
from tests.benchmarks import wrong
from tests.benchmarks.bounds import bound, captured
from tests.benchmarks.case import Case, Point, Variant, Workload
from tests.benchmarks.inference import call, compiled, wrongly

HEADS = 8
SIZES = {"tokens": 64, "width": 1024, "layers": 4}


def points(device: torch.device) -> Iterator[Point]:
    """One sequence, where the host decides; five, which no variant was made for; and many, where the GPU does."""
    if device.type == "cpu":
        yield Point({"batch": 5, "tokens": 16, "width": 64, "layers": 2}, "float32", "forward", ("calls",))
        return
    usual = ("eager", "compile", "package")
    yield Point({"batch": 1} | SIZES, "bfloat16", "forward", ("calls",), (*usual, "graph"), name="batch 1")
    yield Point({"batch": 5} | SIZES, "bfloat16", "forward", ("device", "calls"), usual, name="batch 5")
    yield Point({"batch": 64} | SIZES, "bfloat16", "forward", ("device",), usual, name="batch 64")


@functools.cache
def served(width: int, tokens: int, layers: int, device: torch.device, dtype: torch.dtype) -> Served:
    """The model, one for all batches."""
    torch.manual_seed(0)
    with torch.device(device):
        return Served(layers, Size(device.type, width, HEADS, tokens)).to(dtype).eval()


@functools.cache
def packaged(model: nn.Module, tokens: int, width: int) -> Any:
    """The model's package, made from two sequences for up to 64, loaded as a server does."""
    weight = next(model.parameters())
    x = torch.randn(2, tokens, width, device=weight.device, dtype=weight.dtype)
    # what is made for a GPU has no vector code for the CPU, so nothing need be tried out
    known = torch._inductor.config.patch({"cpp.vec_isa_ok": True}) if x.is_cuda else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), known:
        path = str(Path(folder) / "model.pt2")
        shapes = {"x": {0: torch.export.Dim("batch", min=1, max=MOST)}}
        program = torch.export.export(model, (x,), dynamic_shapes=shapes)
        torch._inductor.aoti_compile_and_package(program, package_path=path)
        return torch._inductor.aoti_load_package(path)


def prepare(point: Point, device: torch.device) -> Workload:
    """The same weights and input for all variants."""
    batch, tokens, width, layers = (point.shape[name] for name in ("batch", "tokens", "width", "layers"))
    model = served(width, tokens, layers, device, getattr(torch, point.dtype))
    x = torch.randn(batch, tokens, width, device=device).to(getattr(torch, point.dtype))
    rows = batch * tokens
    return Workload(
        variants={
            "eager": Variant(lambda: call(model, x)),
            "compile": Variant(lambda: compiled(model, x)),
            "graph": Variant(lambda: compiled(model, x, mode="reduce-overhead")),
            "package": Variant(lambda: call(packaged(model, tokens, width), x)),
        },
        baseline="eager",
        reference=lambda: {"output": call(copy.deepcopy(model).double(), x.double())()},
        bytes_read=x.nbytes + sum(weight.nbytes for weight in model.parameters()),
        bytes_written=x.nbytes,
        flops=layers * rows * (32 * width**2 + 2 * tokens * width),  # the products; attention is causal
        mix="read",
        wrong={
            "5% too large": wrongly(wrong.scaled(model), x),
            "a layer left out": wrongly(without_a_layer(model), x),
            "the scale left out": wrongly(lambda x: model.stack(x), x),
            "one token late": wrongly(lambda x: model(x.roll(1, 1)), x),
        },
    )


def without_a_layer(model: Served) -> nn.Module:
    less = copy.deepcopy(model)
    less.stack.layers = less.stack.layers[:-1]
    return less


eager, package = (partial(captured, "starts", name) for name in ("eager", "package, warm"))
STARTS = {"package": package(which=5), "eager": eager(which=5)}
CALLS = {"eager_call": eager(which=6), "package_call": package(which=6)}
# How many calls make up for the slower start of a package, against eager code on a CPU.
calls_for_a_package = bound("", "ceil((package - eager) / (eager_call - package_call))", STARTS, CALLS)
# How much shorter each call of the package is than eager code's.
saved_by_a_package = bound("us", "eager_call - package_call", CALLS)

LABELS = {
    "graph": {"label": "CUDA graph", "short": "graph", "role": "graph"},
    "package": {"label": "package, loaded", "short": "package", "role": "rewrite-2"},
}
CASE = Case(
    question="What does a call of a loaded package cost beside eager PyTorch and torch.compile, at any batch?",
    check_at={"forward": [{"batch": 2, "tokens": 16, "width": 64, "layers": 2}]},
)
