"""Cross-entropy, forward and a step: how close to reading the logits once and writing their gradient once."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels import cross_entropy as kernel
from snippets.validation.timing import Call
from tests.benchmarks import blocks, sides, wrong
from tests.benchmarks.bounds import bound, ceiling, h100, traffic
from tests.benchmarks.case import Case, Point, Results, Variant, Workload

# vocabularies of Llama 2, GPT-2 (16 does not divide it), Llama 3 and Gemma, and a short row
LARGE = sides.shapes({
    "4k vocabulary": (32768, 4096), "32k vocabulary": (8192, 32000), "gpt-2 vocabulary": (8192, 50257),
    "typical": (8192, 128256), "256k vocabulary": (4096, 262144),
})  # fmt: skip
SMALL = {"4k vocabulary": "small", "32k vocabulary": "small 32k classes", "typical": "small typical"}
OPTIONS = {"32k vocabulary": "32k classes options step", "typical": "typical options step"}
IN_8_PARTS = "in 8 parts"  # gradient accumulation: an incoming gradient of 1/8
TWO_LOSSES = "two losses"  # in turns, with incoming gradients of 1 and 1/2
# a step by the clock, too: Liger-Kernel's waits for the GPU, so that it has no GPU time
MODES = {"forward": ("device",), "both": ("device", "calls")}
HEAD = {"batch": 4, "tokens": 2048, "width": 2048, "vocabulary": 32000}


def points(device: torch.device) -> Iterator[Point]:
    """The forward without gradients, and steps: there is no backward alone to time, since the forward does its work."""
    if device.type == "cpu":
        for direction in ("forward", "both"):
            yield Point(
                {"rows": 256, "columns": 4096}, "float32", direction, modes=("calls",), variants=("eager", "compile")
            )
        return
    for name, shape in LARGE.items():
        for direction in ("forward", "both"):
            called = name + sides.SUFFIX[direction]
            yield Point(shape, "bfloat16", direction, modes=MODES[direction], name=called)
    for part in (IN_8_PARTS, TWO_LOSSES):
        for name, called in OPTIONS.items():
            yield Point(LARGE[name], "bfloat16", "both", part=part, name=called if part == TWO_LOSSES else "")
    for name, shape in LARGE.items():
        for direction in ("forward", "both"):
            called = SMALL[name] + sides.SUFFIX[direction] if name in SMALL else ""
            yield Point({**shape, **sides.FEW}, "bfloat16", direction, ("graph", "calls"), sides.SMALL, name=called)
    yield from blocks.points(device, HEAD, "lm head")


def prepare(point: Point, device: torch.device) -> Workload:
    """A step; in 8 parts with an incoming gradient of 1/8; of two losses two steps in a call.

    A sweep times forwards that compute the gradient too: as part "step".
    """
    dtype, shape = getattr(torch, point.dtype), point.shape
    if "batch" in shape:
        return head(point, device, dtype)
    rows, columns = shape["rows"], shape["columns"]
    # twice as far apart as normal numbers: else little of the gradient is anywhere but at the target
    logits = (2 * torch.randn(rows, columns, device=device)).to(dtype)
    target = torch.randint(0, columns, (rows,), device=device)
    if point.part in ("step", TWO_LOSSES):
        point = replace(point, direction="both")
    if point.part == TWO_LOSSES:
        one, other = (step(point, logits, target, weight) for weight in (1.0, 0.5))
        return in_turns(one, other)
    return step(point, logits, target, 1 / 8 if point.part == IN_8_PARTS else 1.0)


def step(point: Point, logits: Tensor, target: Tensor, incoming: float) -> Workload:
    training = point.direction != "forward"
    dloss = torch.tensor(incoming, device=logits.device, dtype=logits.dtype)
    return sides.workload(
        point,
        kernel,
        {"logits": logits},
        {
            "eager": lambda: F.cross_entropy,
            "ours": lambda: kernel.cross_entropy,
            # in a step its forward writes the gradient over the logits
            "liger": sides.Side(
                sides.library("liger_kernel.transformers.functional:liger_cross_entropy"), overwrites=("both",)
            ),
            "quack": sides.Side(sides.library("quack:cross_entropy"), incoming=torch.float32),  # the loss is fp32
        },
        rest=(target,),
        # the logits once, and once their gradient; targets and sums are under a thousandth
        bytes_read=logits.nbytes,
        bytes_written=logits.nbytes if training else 0,
        flops=(9 if training else 4) * logits.numel(),
        mix="copy" if training else "read",
        grads=(dloss,),
        wrong=wrong_functions(point.direction),
    )


def in_turns(one: Workload, other: Workload) -> Workload:
    """Two steps a call, each with its own incoming gradient: what the forward then guesses is always wrong."""

    def merged(first: Results, second: Results) -> Results:
        return dict(first) | {f"{name}, second": t for name, t in second.items()}

    def both(first: Variant, second: Variant) -> Variant:
        def build() -> Call:
            calls = first.build(), second.build()
            return lambda: tuple(call() for call in calls)

        def refresh() -> None:
            first.refresh(), second.refresh()  # type: ignore[misc]

        return replace(
            first,
            build=build,
            refresh=refresh if first.refresh and second.refresh else None,
            results=lambda returned: merged(first.results(returned[0]), second.results(returned[1])),  # type: ignore
        )

    def wrongly(spoil: Callable[[Results], Results], spoil_second: Callable[[Results], Results]) -> Callable:
        return lambda baseline: merged(spoil(baseline), spoil_second(baseline))

    return replace(
        one,
        wrong={name: wrongly(spoil, other.wrong[name]) for name, spoil in one.wrong.items()},
        variants={name: both(variant, other.variants[name]) for name, variant in one.variants.items()},
        reference=lambda: merged(one.reference(), other.reference()),
        bytes_read=2 * one.bytes_read,
        bytes_written=2 * one.bytes_written,
        flops=2 * one.flops,
    )


def wrong_functions(direction: str) -> Mapping[str, sides.Function]:
    def part_of_the_sum(logits: Tensor, target: Tensor) -> Tensor:
        sums = logits[:, : logits.shape[1] // 2].float().logsumexp(-1)
        return (sums - logits.float().gather(1, target[:, None])[:, 0]).mean().to(logits.dtype)

    def zero_except_at_the_target(logits: Tensor, target: Tensor) -> Tensor:
        at = target[:, None]
        only = lambda grad: torch.zeros_like(grad).scatter_(1, at, grad.gather(1, at))  # noqa: E731
        return wrong.with_gradient(F.cross_entropy, only)(logits, target)

    functions = {
        "5% too large": wrong.scaled(F.cross_entropy),
        "half of the row left out of the sum": part_of_the_sum,
        "logits 20% too large": lambda logits, target: F.cross_entropy(1.2 * logits, target),
    }
    only_gradient = {"gradient zero except at the target": zero_except_at_the_target}
    return functions | ({} if direction == "forward" else only_gradient)


# ---- inside -----------------------------------------------------------------------------------------------------


class Head(nn.Module):
    """The end of a language model: hidden states to logits to loss."""

    def __init__(self, loss: sides.Function, width: int, vocabulary: int):
        super().__init__()
        self.projection, self.loss = nn.Linear(width, vocabulary, bias=False), loss

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return self.loss(self.projection(hidden).flatten(0, 1), target)


def head(point: Point, device: torch.device, dtype: torch.dtype) -> Workload:
    batch, tokens, width, vocabulary = point.shape.values()
    plain, ours = (Head(loss, width, vocabulary).to(device, dtype) for loss in (F.cross_entropy, kernel.cross_entropy))
    ours.projection = plain.projection
    with torch.no_grad():
        plain.projection.weight.mul_(4)  # logits that tell tokens apart, as a trained model's do
    mutants = {}
    for name, loss in wrong_functions(point.direction).items():
        mutants[name] = copy.copy(plain)
        mutants[name].loss = loss
    hidden = torch.randn(batch, tokens, width, device=device).to(dtype)
    target = torch.randint(0, vocabulary, (batch * tokens,), device=device)
    return blocks.module_workload(point, plain, ours, hidden, target, wrong=mutants)


COPY = ceiling("copy", case="kernels/cross-entropy")
LOGITS = {"rows": 8192, "columns": 32000, "width": 2}
# The logits of a batch with a vocabulary of 128256.
logits_bytes = bound("GB", "rows * columns * width", rows=8192, columns=128256, width=2)
# A step that reads the logits once and writes their gradient once; and what that takes at the rate of a copy.
step_bytes, step_at_least = traffic(2, LOGITS, copy=COPY)
# Three passes over the logits at the rate of a copy.
three_passes = bound("us", "3 * rows * columns * width / copy", LOGITS, copy=COPY)
# Three passes over the widest logits at the rate of a copy.
three_passes_widest = bound("us", "3 * rows * columns * width / copy", rows=4096, columns=262144, width=2, copy=COPY)
# The exponentials of both looks, and one for each group, at the datasheet's rate.
exponentials_take = bound(
    "us", "rows * columns * (2 + 1 / group) / (flops / 2 * exponentials / lanes)", LOGITS, group=8,
    flops=h100("float32"), lanes=h100("lanes"), exponentials=h100("exponentials"),
)  # fmt: skip
# The number of tokens from which on a signed offset of 32 bits cannot reach all logits.
tokens_past_32_bits = bound("", "ceil(2**31 / words)", words=128256)

CASE = Case(
    question="What does a loss cost, beside reading its logits once and writing their gradient once?",
    check_at={
        "forward both": [{"rows": 64, "columns": 1024}, {"batch": 1, "tokens": 64, "width": 256, "vocabulary": 1024}],
        "both": [{"part": part, "rows": 64, "columns": 1024} for part in (IN_8_PARTS, TWO_LOSSES)],
    },
)
