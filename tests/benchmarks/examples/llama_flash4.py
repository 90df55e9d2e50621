"""The Llama step with FlashAttention 4, and with the loss in one piece, beside the fastest rungs of examples/llama."""

from collections.abc import Callable, Iterator
from functools import cache, partial

import torch

from snippets.examples import llama, llama_flash4
from snippets.examples.llama import LLAMA, RUNGS, TINY, Loss, make_model, make_optimizer, sharing
from snippets.validation.timing import captured
from tests.benchmarks.bounds import bound, ceiling, gpu, memory
from tests.benchmarks.case import Call, Case, Point, Results, Variant, Workload
from tests.benchmarks.examples.llama import (
    FEW,
    LOSS_IS_OFF_BY,
    WHOLE,
    WRONG,
    as_returned,
    flops,
    grads,
    in_float64,
)

STEPS = "eager", "rewritten-update", "wide", "flash4", "flash4-wide", "flash4-ahead"


def points(device: torch.device) -> Iterator[Point]:
    """The whole model; and two layers, in which all gradients are held against float64."""
    if device.type == "cpu":
        tiny = {"batch": 2, "tokens": 64, "layers": 2, "width": 64, "vocabulary": 256}
        yield Point(tiny, "float32", "both", ("calls",), ("eager", "wide"))
        return
    yield Point(WHOLE, "bfloat16", "both", ("sustained",), STEPS)
    yield Point(FEW, "bfloat16", "both", ("calls",), ("eager", "rewritten-cudnn", "flash4", "flash4-wide"))


def prepare(point: Point, device: torch.device) -> Workload:
    """Random weights and tokens. The learning rate is zero: a step does all of its work and changes nothing."""
    batch, length, layers, width, vocabulary = point.shape.values()
    base = LLAMA if width == LLAMA["hidden_size"] else TINY
    sizes: dict[str, float] = dict(base) | {"num_hidden_layers": layers, "vocab_size": vocabulary}
    model = make_model(sizes, device, getattr(torch, point.dtype))
    optimizer = make_optimizer(model, lr=0.0)
    tokens = torch.randint(int(vocabulary), (batch, length), device=device)
    watched = [name for name, p in model.named_parameters() if layers < 16 or p.dim() == 1]

    def results_of(loss_of: Loss, update: Call) -> Results:
        loss = loss_of(tokens)
        loss.backward()
        update()
        found = {"loss": loss.detach()} | {f"{name}.grad": grads(model)[name] for name in watched}
        optimizer.zero_grad()
        return found

    @cache
    def compiled_update() -> Call:
        """Of an optimizer of its own: what compiled code saw of the other's settings must stay."""
        return llama.update_compiled(make_optimizer(model, lr=0.0)) if layers == 16 else optimizer.step

    def step(rung: Callable[..., Loss], updated: Callable[[], Call] = compiled_update) -> Call:
        return partial(results_of, rung(sharing(model)), updated())

    def ahead() -> Call:
        """The parameters are those of all variants, so the hooks are there for the capture only."""
        torch.cuda.empty_cache()
        updates = llama.UpdateAhead(model, lr=0.0)
        try:
            return captured(partial(results_of, llama_flash4.flash4(sharing(model)), updates.join))
        finally:
            updates.remove()

    def wrongly(spoil: Callable[..., Loss]) -> Callable[[Results], Results]:
        return lambda baseline: results_of(spoil(sharing(model)), lambda: None)

    builds: dict[str, Callable[[], Call]] = {
        "eager": partial(step, RUNGS["eager"], lambda: optimizer.step),
        "rewritten-cudnn": partial(step, RUNGS["rewritten-cudnn"]),
        "rewritten-update": partial(step, RUNGS["rewritten-cudnn"]),
        "wide": partial(step, llama_flash4.wide),
        "flash4": partial(step, llama_flash4.flash4),
        "flash4-wide": partial(step, llama_flash4.flash4_wide),
        "flash4-ahead": ahead,
    }
    return Workload(
        variants={name: Variant(build, as_returned) for name, build in builds.items()},
        baseline="eager",
        reference=lambda: in_float64(model, tokens, watched),
        bytes_read=0,  # matrix products rule: no bound of traffic is drawn
        bytes_written=0,
        flops=sum(flops(sizes, batch, length).values()),
        largest_summands={"loss": LOSS_IS_OFF_BY / (2 * torch.finfo(torch.float32).eps)},
        wrong={name: wrongly(spoil) for name, spoil in WRONG.items()},
    )


@bound("ms", layers=16, attention=gpu("cudnn", "attention", case="examples/llama"))
def attention_of_all_layers(layers: float, attention: float) -> float:
    """What attention takes in all layers, by cuDNN's time alone."""
    return layers * attention


@bound("ms", layers=16, attention=gpu("cudnn", "attention", case="examples/llama"))
def fifth_of_attention(layers: float, attention: float) -> float:
    """What a step gains if its attention takes a fifth less time."""
    return layers * attention / 5


@bound("ms", before=gpu("rewritten-update", "step"), after=gpu("flash4", "step"))
def gained_by_flash4(before: float, after: float) -> float:
    """How much shorter the step is with FlashAttention 4."""
    return before - after


@bound("GB", vocabulary=128256, width=2048)
def gradient_sum(vocabulary: float, width: float) -> float:
    """The fp32 sum of the gradient of the vocabulary's matrix."""
    return vocabulary * width * 4


@bound(
    "ms",
    vocabulary=128256,
    width=2048,
    copy=ceiling("copy", case="examples/llama-flash4", shape="4x4096x16x2048x128256"),
)
def passes_saved(vocabulary: float, width: float, copy: float) -> float:
    """What six passes over the sum take at the rate of a copy."""
    return 6 * vocabulary * width * 4 / copy


@bound("GB", after=memory("wide", "step"), before=memory("rewritten-update", "step"))
def memory_of_one_piece(after: float, before: float) -> float:
    """How much more memory the loss in one piece takes."""
    return after - before


@bound("", step=memory("flash4", "step"), layers=16, width=2048, inner=8192, vocabulary=128256)
def flash4_needs(step: float, layers: float, width: float, inner: float, vocabulary: float) -> float:
    """GiB that the step with FlashAttention 4 needs with the parameters and AdamW's state."""
    return (
        step + 3 * 2 * (layers * (2 * width**2 + 2 * width**2 // 4 + 3 * width * inner) + 2 * width * vocabulary)
    ) / 1024**3


@bound("ms", goal=235)
def goal_of_step(goal: float) -> float:
    """The time of a step that this site had set itself, in milliseconds."""
    return goal / 1000


@bound("ms", goal=235, least=gpu("flash4-wide", "step"))
def goal_missed_by(goal: float, least: float) -> float:
    """How far the fastest step is from that goal."""
    return least - goal / 1000


CHECK_AT = {"both": [{"batch": 2, "tokens": 64, "layers": 2, "width": 64, "vocabulary": 256}]}
LABELS = {
    "rewritten-cudnn": {"label": "rewritten, cuDNN first", "short": "cuDNN first", "role": "ours"},
    "rewritten-update": {"label": "rewritten, AdamW compiled", "short": "AdamW compiled", "role": "ours"},
    "wide": {"label": "the same, the loss in one piece", "short": "one piece", "role": "ours"},
    "flash4": {"label": "the same, FlashAttention 4", "short": "FlashAttention 4", "role": "ours"},
    "flash4-wide": {"label": "FlashAttention 4, the loss in one piece", "short": "both", "role": "ours"},
    "flash4-ahead": {"label": "FlashAttention 4, AdamW beside, CUDA graph", "short": "CUDA graph", "role": "graph"},
}
POINTS = {  # as pages name them
    "step": "both 4x4096x16x2048x128256 bfloat16 sustained",
}
CASE = Case(
    name="examples/llama-flash4",
    question="What do FlashAttention 4 and a loss in one piece still give, in time and in memory?",
    points=points,
    prepare=prepare,
)
