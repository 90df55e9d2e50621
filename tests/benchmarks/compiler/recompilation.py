"""What a graph for every length gives away against one for this length, and what padding to the next bucket costs."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from snippets.compiler.recompilation_strategies import STRATEGIES, Weights, block, bucket, make_weights
from tests.benchmarks import wrong
from tests.benchmarks.bounds import bound, captured, gpu
from tests.benchmarks.case import Call, Case, Point, Results, Variant, Workload
from tests.benchmarks.own import own

OTHER = 96  # a length that a graph for every length is first called with, so that none is made for the point's own


# How many more tokens are computed where lengths are padded to powers of two.
padding = bound(
    "%", "padded / tokens - 1",
    padded=captured("exercises", "powers of two", which=3, of="compiler/recompilation_diary"),
    tokens=captured("lengths", "tokens", of="compiler/recompilation_diary"),
)  # fmt: skip
# How many of the 500 calls neither compile, nor reuse what was compiled.
run_eagerly = bound("", "calls - compiled - again", calls=500, compiled=8, again=11)
# How many times the tokens of the diary are computed, where lengths are padded.
padded_over_asked = bound("x", "padded / asked", padded=113440, asked=79556)
# The time of a graph for every length, over that of a graph for this length.
marked_over_static = bound(
    "x", "marked / static", marked=gpu("marked", "513 tokens"), static=gpu("compile", "513 tokens")
)

LABELS = {
    "marked": {"label": "marked dynamic", "short": "marked", "role": "peer-1"},
    "unbacked": {"label": "unbacked", "short": "unbacked", "role": "peer-2"},
    "padded": {"label": "padded to a power of two", "short": "padded", "role": "rewrite-2"},
}


def points(device: torch.device) -> Iterable[Point]:
    """The diary's usual length, the worst one to pad, and one that is a bucket; then a call that the host rules."""
    if device.type == "cpu":
        yield Point({"batch": 1, "length": 100, "width": 128}, "float32", "forward", ("calls",))
        return
    few = ("eager", "compile", "marked", "padded")
    for length in (100, 513, 1024):
        variants = None if length == 513 else few  # each is compiled, for seconds
        shape, name = {"batch": 8, "length": length, "width": 4096}, f"{length} tokens"
        yield Point(shape, "bfloat16", "forward", ("device", "calls"), variants, name=name)
    yield Point({"batch": 1, "length": 100, "width": 1024}, "bfloat16", "forward", ("device", "calls"), name="short")


def prepare(point: Point, device: torch.device) -> Workload:
    """Input x (batch, length, width) and a block's weights; no gradients."""
    batch, length, width = point.shape.values()
    dtype = getattr(torch, point.dtype)
    x = torch.randn(batch, length, width, device=device).to(dtype)
    other = torch.randn(batch, OTHER, width, device=device).to(dtype)
    weights = make_weights(width, device, dtype)
    tensors = (weights.qkv, weights.out, weights.up, weights.down)

    def strategy(name: str) -> Callable[[], Call]:
        return lambda: compiled(name, x, other if name in ("marked", "unbacked") else x, weights)

    def wrongly(function: Callable) -> Callable[[Results], Results]:
        return lambda baseline: {"output": function(x, weights)}

    return Workload(
        variants={
            "eager": Variant(lambda: partial(block, x, weights)),
            "compile": Variant(strategy("static")),
            "marked": Variant(strategy("marked")),
            "unbacked": Variant(strategy("unbacked")),
            "padded": Variant(strategy("padded")),
        },
        baseline="eager",
        reference=lambda: {"output": block(x.double(), in_float64(weights))},
        bytes_read=x.nbytes + sum(tensor.nbytes for tensor in tensors),
        bytes_written=x.nbytes,
        flops=batch * length * (20 * width * width + 2 * length * width),  # causal: half of the scores
        wrong={
            "5% too large": wrongly(wrong.scaled(block)),
            "last rows not written": wrongly(wrong.cut(block)),
            "padded in front": wrongly(padded_in_front),
            "without the skip connection": wrongly(lambda x, weights: block(x, weights) - x),
        },
    )


def padded_in_front(x: Tensor, weights: Weights) -> Tensor:
    """Zeros before the first token: every token attends to them."""
    length = x.shape[1]
    behind = torch.nn.functional.pad(x, (0, 0, max(16, 2 * bucket(length) - length), 0))
    return block(behind, weights)[:, -length:]


def in_float64(weights: Weights) -> Weights:
    return replace(
        weights,
        qkv=weights.qkv.double(), out=weights.out.double(), up=weights.up.double(), down=weights.down.double(),
    )  # fmt: skip


def compiled(name: str, x: Tensor, first: Tensor, weights: Weights) -> Call:
    """A strategy of the page, compiled by a call with `first`, which has the shape of `x` or another length."""
    function, call, options = STRATEGIES[name]
    run = torch.compile(own(function), **options)
    x, first = x.clone(), first.clone()  # a mark stays on its tensor: no other strategy may see it
    with torch.no_grad():
        call(run, first, weights)
        call(run, x, weights)

    def without_gradients() -> Tensor:
        with torch.no_grad():
            return call(run, x, weights)

    return without_gradients


CASE = Case(
    question="What does a graph for every length cost a call, and what does padding to the next power of two?",
    check_at={"forward": [{"batch": 2, "length": 20, "width": 256}]},
)
