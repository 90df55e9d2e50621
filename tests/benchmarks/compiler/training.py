"""A training step end to end: what each choice around torch.compile does to its time and to its peak memory."""

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch._dynamo.compiled_autograd
import torch._functorch.config
from torch import Tensor, nn

from snippets.compiler import training, training_model, training_step
from snippets.compiler.training_checkpointing import selective, whole, with_run
from tests.benchmarks.bounds import bound, gpu, memory
from tests.benchmarks.case import Call, Case, Point, Results, Variant, Workload
from tests.benchmarks.own import own

Step = Callable[..., Tensor]  # as train_step
Batches = Sequence[training_model.Batch]
STEPS, VARIANCE = 100, 1e-9  # before the step that is checked: in Adam's first one the size of a gradient has no say


def points(device: torch.device) -> Iterable[Point]:
    """One step of a model whose matrix products take most of the time, and whose activations most of the memory."""
    if device.type == "cpu":
        shape = {"layers": 2, "width": 128, "vocabulary": 512, "rows": 4, "length": 64}
        yield Point(shape, "bfloat16", "both", ("calls",), ("eager", "compile", "checkpoint"))
        return
    shape = {"layers": 2, "width": 2048, "vocabulary": 8192, "rows": 8, "length": 2048}
    yield Point(shape, "bfloat16", "both", ("sustained",), name="step")


class Training:
    """A model and its optimizer as they are in the middle of a training, and the way back there.

    All that are made from one model share its parameters, and change them: `before` is a copy of what they were.
    """

    looked_at: tuple[str, ...] = ("blocks.0.qkv.weight", "head.weight")  # their update and moment are compared

    def __init__(
        self, model: training_model.Model, before: dict[str, Tensor], batches: Batches, step: Step, **adam: object
    ):
        self.model, self.before, self.batches, self.step = model, before, batches, step
        self.parameters = dict(model.named_parameters())
        self.optimizer = torch.optim.AdamW(self.parameters.values(), lr=1e-3, weight_decay=0.1, **adam)
        for p in self.parameters.values():
            p.grad = torch.zeros_like(p)
        self.optimizer.step()  # makes its state
        self.restore()

    def restore(self) -> None:
        self.optimizer.zero_grad()
        with torch.no_grad():
            for name, p in self.parameters.items():
                p.copy_(self.before[name])
                state = self.optimizer.state[p]
                state["step"].fill_(STEPS)
                state["exp_avg"].zero_()
                state["exp_avg_sq"].fill_(VARIANCE)

    def __call__(self) -> Tensor:
        return self.step(self.model, self.optimizer, self.batches)

    def results(self, loss: object) -> Results:
        """In the dtype in which the step computes: parameters and moments are kept in fp32, whatever they come from."""
        assert isinstance(loss, Tensor)
        found = {"loss": loss}
        for name in self.looked_at:
            p = self.parameters[name]
            found[f"update of {name}"] = p.detach() - self.before[name]
            found[f"moment of {name}"] = self.optimizer.state[p]["exp_avg"]
        return found


def variant(make: Callable[[], Any], dtype: torch.dtype) -> Variant:
    """A training that is made when it is built, with all that it needs."""
    made: list[Any] = []

    def build() -> Call:
        made.append(make())
        return made[0]

    def results(loss: object) -> Results:
        return {name: t.to(dtype) for name, t in made[0].results(loss).items()}

    return Variant(build, results, refresh=lambda: made[0].restore())


def spoilt(make: Callable[[], Training], dtype: torch.dtype) -> Callable[[Results], Results]:
    """The results of a training that is wrong."""

    def results(baseline: Results) -> Results:
        wrong = make()
        return {name: t.to(dtype) for name, t in wrong.results(wrong()).items()}

    return results


def batch_of(vocabulary: int, rows: int, length: int, device: torch.device) -> training_model.Batch:
    """Random tokens, and those that follow."""
    tokens = torch.randint(vocabulary, (rows, length + 1), device=device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def prepare(point: Point, device: torch.device) -> Workload:
    """Random tokens and targets; parameters in fp32, matrix products in the point's dtype."""
    layers, width, vocabulary, rows, length = point.shape.values()
    dtype = getattr(torch, point.dtype)
    model = training_model.Model(vocabulary, width, layers).to(device)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    batch = batch_of(vocabulary, rows, length, device)
    halves = [(batch[0][half], batch[1][half]) for half in (slice(0, rows // 2), slice(rows // 2, rows))]

    loss_of = training_step.loss_of if dtype == torch.bfloat16 else plain

    def at(step: Step, model: training_model.Model = model, batches: Sequence = (batch,), **adam: object) -> Variant:
        return variant(lambda: Training(model, before, batches, step, **adam), dtype)

    def of(loss_of: Callable[..., Tensor], update: Callable[..., None] = training_step.clip_and_update) -> Step:
        return partial(training_step.train_step, loss_of=loss_of, clip_and_update=update)

    def wrongly(step: Step, batches: Batches = (batch,)) -> Callable[[Results], Results]:
        return spoilt(lambda: Training(copy.deepcopy(model), before, batches, step), dtype)

    def in_float64() -> Results:
        """Row by row, which is the same: each has as many tokens."""
        batches = [(batch[0][row : row + 1], batch[1][row : row + 1]) for row in range(rows)]
        exact = Training(copy.deepcopy(model).double(), before, batches, of(plain))
        return exact.results(exact())

    compiled = compiled_alone(loss_of)
    capturable = {"capturable": device.type == "cuda"}
    checkpointed, selected = with_run(model, whole), with_run(model, selective)
    return Workload(
        variants={
            "eager": at(of(loss_of)),
            "eager-checkpoint": at(of(loss_of), checkpointed),
            "compile": at(of(compiled)),
            "checkpoint": at(of(compiled_alone(loss_of)), checkpointed),
            "selective": at(of(compiled_alone(loss_of)), selected),
            "budget-90": at(of(under_budget(0.9, compiled_alone(loss_of)))),
            "budget-50": at(of(under_budget(0.5, compiled_alone(loss_of)))),
            "budget-0": at(of(under_budget(0.0, compiled_alone(loss_of)))),
            "fused": at(of(compiled), fused=True),
            "optimizer": at(of(compiled, update_compiled()), **capturable),
            "clip-too": at(of(compiled, compiled_alone(training_step.clip_and_update)), **capturable),
            "halves": at(of(compiled_alone(loss_of)), batches=halves),
            "halves-together": at(of(compiled_alone(training.loss_of_all)), batches=[halves]),
            "autocast-outside": at(of(under_autocast(compiled_alone(plain)))),
            "compiled-autograd": at(backward_compiled(of(compiled))),
        },
        baseline="eager",
        reference=in_float64,
        bytes_read=0,  # no bound is drawn: matrix products take most of the time
        bytes_written=0,
        flops=flops(layers, width, vocabulary, rows, length),
        wrong={
            "not clipped": wrongly(of(loss_of, lambda parameters, optimizer: optimizer.step())),
            "each gradient clipped by its own norm": wrongly(of(loss_of, clip_each)),
            "clipped after the update": wrongly(of(loss_of, clip_late)),
            "gradient of other tokens not zeroed": wrongly(not_zeroed(of(loss_of))),
            "second half left out": wrongly(of(loss_of), halves[:1]),
        },
    )


def flops(layers: int, width: int, vocabulary: int, rows: int, length: int) -> int:
    """Three times the forward's products; attention looks at half of the pairs. Nothing that is computed again."""
    matrices = 16 * width**2 * layers + width * vocabulary
    return 3 * rows * length * (2 * matrices + 2 * layers * length * width)


def compiled_alone(function: Callable) -> Callable:
    """Compiled apart from all others."""
    return torch.compile(own(function), dynamic=False)


def under_budget(budget: float, function: Callable) -> Callable:
    """Compiled, when it is called first, under a memory budget. Later calls find it compiled."""

    def called(*arguments: object) -> object:
        with torch._functorch.config.patch(activation_memory_budget=budget):
            return function(*arguments)

    return called


def update_compiled() -> Callable[..., None]:
    """The gradients are clipped eagerly, and the optimizer's step is compiled."""
    update: list[Callable] = []

    def called(parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> None:
        nn.utils.clip_grad_norm_(parameters, training_step.MAX_NORM)
        if not update:
            update.append(torch.compile(optimizer.step))
        update[0]()

    return called


def plain(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return model(tokens, targets)


def under_autocast(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def called(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(tokens.device.type, torch.bfloat16):
            return function(model, tokens, targets)

    return called


def backward_compiled(step: Step) -> Step:
    """With compiled autograd: what autograd runs in backward is captured as one graph, and compiled."""

    compiler = torch.compile(dynamic=False)

    def called(*arguments: object) -> Tensor:
        with torch._dynamo.compiled_autograd._enable(compiler):
            return step(*arguments)

    return called


def clip_each(parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> None:
    for parameter in parameters:
        nn.utils.clip_grad_norm_([parameter], training_step.MAX_NORM)
    optimizer.step()


def clip_late(parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    nn.utils.clip_grad_norm_(parameters, training_step.MAX_NORM)


def not_zeroed(step: Step) -> Step:
    def called(model: training_model.Model, optimizer: torch.optim.Optimizer, batches: Batches) -> Tensor:
        model(*(t.flip(0, 1) for t in batches[0])).backward()
        return step(model, optimizer, batches)

    return called


# How much lower the peak of the compiled step is with this choice.
freed = bound("GB", "plain - less", plain=memory("compile", "step"), less=memory("{variant}", "step"))
# How much longer the compiled step takes with this choice.
added = bound("ms", "slow - plain", slow=gpu("{variant}", "step"), plain=gpu("compile", "step"))
# The memory that each millisecond added to the compiled step frees.
freed_by_ms = bound(
    "MB", "(plain - less) / (slow - fast) / 1000", plain=memory("compile", "step"), less=memory("{variant}", "step"),
    slow=gpu("{variant}", "step"), fast=gpu("compile", "step"),
)  # fmt: skip
# The bytes of the bf16 copies that autocast makes of the large model's matrices.
copies_of_weights = bound(
    "MB", "2 * (16 * layers * width**2 + vocabulary * width)", layers=2, width=2048, vocabulary=8192
)

LABELS = {
    "eager-checkpoint": {"label": "eager, blocks checkpointed", "role": "rewrite"},
    "checkpoint": {"label": "blocks checkpointed", "role": "rewrite"},
    "selective": {"label": "products kept", "role": "rewrite"},
    "budget-90": {"label": "budget 0.9", "role": "rewrite-2"},
    "budget-50": {"label": "budget 0.5", "role": "rewrite-2"},
    "budget-0": {"label": "budget 0", "role": "rewrite-2"},
    "fused": {"label": "fused AdamW", "role": "other"},
    "optimizer": {"label": "AdamW compiled", "role": "other"},
    "clip-too": {"label": "clipping and AdamW compiled", "role": "other"},
    "halves": {"label": "two halves, loop outside", "role": "other-2"},
    "halves-together": {"label": "two halves, loop inside", "role": "other-2"},
    "autocast-outside": {"label": "autocast outside", "role": "other-2"},
    "compiled-autograd": {"label": "compiled autograd", "role": "other-2"},
}
CASE = Case(
    question="What does each choice around a compiled training step do to its time and to its peak memory?",
    check_at={"both": [{"layers": 1, "width": 128, "vocabulary": 256, "rows": 2, "length": 32}]},
)
