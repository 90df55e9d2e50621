"""A training step that wastes memory: what each remedy gives back at the peak, and what it does to the time."""

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from snippets.validation import memory_remedies as page
from snippets.validation import memory_step
from snippets.validation.memory_step import train_step as step_of
from tests.benchmarks.bounds import bound, captured, gpu
from tests.benchmarks.case import Case, Point, Results, Variant, Workload
from tests.benchmarks.compiler import training
from tests.benchmarks.own import own


def points(device: torch.device) -> Iterable[Point]:
    """One step of a model whose scores and logits take most of the memory."""
    if device.type == "cpu":
        shape = {"layers": 2, "width": 64, "vocabulary": 512, "rows": 2, "length": 64}
        names = "eager", "sdpa", "parts", "checkpoint", "in-place", "fused", "early", "together"
        yield Point(shape, "bfloat16", "both", ("calls",), names)
        return
    shape = {"layers": 2, "width": 2048, "vocabulary": 32768, "rows": 4, "length": 2048}
    yield Point(shape, "bfloat16", "both", ("sustained",), name="step")


class Training(training.Training):
    """A training as in the case of compiled steps, with the step of this page and the names in its model."""

    looked_at = ("blocks.0.attention.qkv.weight", "head.weight")

    def __call__(self) -> Tensor:
        return self.step(self.model, self.optimizer, *self.batches[0])


class TrainingEarly(Training):
    """Each parameter steps by itself in backward: on parameters of its own, whose hooks no other variant meets."""

    def __init__(
        self, model: page.Model, before: dict[str, Tensor], batches: Sequence[memory_step.Batch], step: Callable
    ):
        super().__init__(model, before, batches, step, fused=True)
        self.optimizer = memory_step.Early(model, fused=True, weight_decay=self.optimizer.defaults["weight_decay"])
        self.restore()


def prepare(point: Point, device: torch.device) -> Workload:
    """Random tokens and targets; parameters in fp32, matrix products in the point's dtype."""
    layers, width, vocabulary, rows, length = point.shape.values()
    dtype = getattr(torch, point.dtype)
    model = page.Model(layers, width, max(width // 128, 1), vocabulary).to(device)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    batch = training.batch_of(vocabulary, rows, length, device)
    two: dict[str, Any] = {"attention": page.sdpa, "loss": page.in_parts}
    forward = memory_step.loss_of if dtype == torch.bfloat16 else memory_step.loss_in_fp32
    step_as_usual = partial(step_of, loss_of=forward)

    def with_copy(of: Callable[..., Training], step: Callable, batch: memory_step.Batch, remedies: Any) -> Training:
        return of(page.with_remedies(copy.deepcopy(model), **remedies), before, [batch], step)

    def at(step: Callable = step_as_usual, adam: dict[str, bool] | None = None, **remedies: Any) -> Variant:
        how = adam or {"foreach": True}
        make = lambda: Training(page.with_remedies(model, **remedies), before, [batch], step, **how)  # noqa: E731
        return training.variant(make, dtype)

    def early(**remedies: Any) -> Variant:
        return training.variant(lambda: with_copy(TrainingEarly, step_as_usual, batch, remedies), dtype)

    def wrongly(step: Callable = step_as_usual, batch: memory_step.Batch = batch, **remedies: Any) -> Callable:
        return training.spoilt(lambda: with_copy(Training, step, batch, remedies), dtype)

    def in_float64() -> Results:
        """Row by row, which is the same: each has as many tokens."""
        exact = Training(copy.deepcopy(model).double(), before, [batch], row_by_row)
        return exact.results(exact())

    fused = {"fused": True}
    return Workload(
        variants={
            "eager": at(),
            "fp32": at(partial(step_of, loss_of=memory_step.loss_in_fp32)),
            "sdpa": at(attention=page.sdpa),
            "parts": at(loss=page.in_parts),
            "loss-kernel": at(loss=by_kernel),
            "checkpoint": at(checkpointed=True),
            "in-place": at(in_place=True),
            "fused": at(adam=fused),
            "together": at(adam=fused, **two),
            "checkpoint-too": at(adam=fused, checkpointed=True, **two),
            "early": early(**two),
            "compile": at(partial(step_of, loss_of=compiled(forward))),
            "compile-together": at(partial(step_of, loss_of=compiled(forward)), adam=fused, **two),
        },
        baseline="eager",
        reference=in_float64,
        bytes_read=0,  # no bound is drawn: matrix products take most of the time
        bytes_written=0,
        flops=flops(layers, width, vocabulary, rows, length),
        wrong={
            "attention looks ahead": wrongly(attention=nn.functional.scaled_dot_product_attention),
            "gradient not zeroed": wrongly(partial(not_zeroed, step_as_usual)),
            "one row left out": wrongly(batch=(batch[0][1:], batch[1][1:])),
            "loss summed, not averaged": wrongly(loss=summed),
            "parts weighed as if each were the whole": wrongly(loss=parts_averaged),
        },
    )


def row_by_row(model: page.Model, optimizer: torch.optim.Optimizer, tokens: Tensor, targets: Tensor) -> Tensor:
    losses = []
    for row in range(len(tokens)):
        loss = model(tokens[row : row + 1], targets[row : row + 1]) / len(tokens)
        loss.backward()
        losses.append(loss.detach())
    optimizer.step()
    return torch.stack(losses).sum()


def by_kernel(x: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """This site's kernel, which writes the gradient of the logits in the forward: it keeps them alone."""
    from kernels.cross_entropy import cross_entropy

    return cross_entropy(nn.functional.linear(x, head), targets)


def compiled(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compiled apart from all others."""
    return torch.compile(own(forward), dynamic=False)


def summed(x: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(nn.functional.linear(x, head), targets, reduction="sum")


def parts_averaged(x: Tensor, head: Tensor, targets: Tensor, parts: int = 8) -> Tensor:
    pieces = zip(x.chunk(parts), targets.chunk(parts), strict=True)
    return sum(nn.functional.cross_entropy(nn.functional.linear(x, head), t) for x, t in pieces)


def not_zeroed(step: Callable, model: page.Model, optimizer: torch.optim.Optimizer, *batch: Tensor) -> Tensor:
    model(*(t.flip(0, 1) for t in batch)).backward()
    return step(model, optimizer, *batch)


def flops(layers: int, width: int, vocabulary: int, rows: int, length: int) -> int:
    """Three times the forward's products, the scores of all pairs. Nothing that is computed again."""
    matrices = 12 * width**2 * layers + width * vocabulary
    return 3 * rows * length * (2 * matrices + 4 * layers * length * width)


peak_with = partial(captured, "remedies", of="validation/memory_predicted")
# By how much a remedy lowers the peak of a small language model, which the script prints in MB.
saved = bound(
    "GB", "(before - after) * million", before=peak_with("nothing"), after=peak_with("{remedy}"), million=1000000
)
# The logits of a step in fp32.
logits = bound("MB", "tokens * vocabulary * width", tokens=8192, vocabulary=32768, width=4)
# The copies in bf16 that autocast makes for the last product.
copies_for_last_product = bound(
    "MB", "(vocabulary * width + tokens * width) * bf16", vocabulary=32768, width=2048, tokens=8192, bf16=2
)
# How many times as long the step takes with checkpointed blocks.
checkpointing_slower = bound("x", "after / before", after=gpu("checkpoint", "step"), before=gpu("eager", "step"))
growing = partial(captured, "growing", "default", of="validation/memory_allocator")
# How many times the tensors' memory the default allocator reserves.
reserved_over_used = bound("x", "reserved / used", used=growing(which=1), reserved=growing(which=2))
# Three tensors of logits with a large vocabulary on a GPU: two in fp32, and the last gradient in bf16.
logits_three_times = bound(
    "GB", "(2 * fp32 + bf16) * tokens * vocabulary", tokens=8192, vocabulary=128256, fp32=4, bf16=2
)

LABELS = {
    "fp32": {"label": "fp32, no autocast", "role": "other"},
    "sdpa": {"label": "SDPA", "role": "peer-1"},
    "parts": {"label": "loss in parts", "role": "rewrite"},
    "loss-kernel": {"label": "loss by a kernel", "role": "ours"},
    "checkpoint": {"label": "blocks checkpointed", "role": "rewrite"},
    "in-place": {"label": "ReLU in place", "role": "other"},
    "fused": {"label": "fused AdamW", "role": "other"},
    "together": {"label": "SDPA, loss in parts, fused AdamW", "role": "rewrite-2"},
    "checkpoint-too": {"label": "the three, and blocks checkpointed", "role": "rewrite-2"},
    "early": {"label": "the three, each parameter stepping early", "role": "rewrite-2"},
    "compile-together": {"label": "the three, compiled", "role": "compile-max"},
}
CASE = Case(
    question="What does each remedy give back at a training step's peak, and what does it cost?",
    check_at={"both": [{"layers": 2, "width": 64, "vocabulary": 512, "rows": 2, "length": 64}]},
)
