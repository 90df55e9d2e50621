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
    parameters_and_state,
)

STEPS = "eager", "rewritten-update", "wide", "flash4", "flash4-wide", "flash4-ahead"


def points(device: torch.device) -> Iterator[Point]:
    """The whole model; and two layers, in which all gradients are held against float64."""
    if device.type == "cpu":
        tiny = {"batch": 2, "tokens": 64, "layers": 2, "width": 64, "vocabulary": 256}
        yield Point(tiny, "float32", "both", ("calls",), ("eager", "wide"))
        return
    yield Point(WHOLE, "bfloat16", "both", ("sustained",), STEPS, name="step")
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


COPY = ceiling("copy", case="examples/llama-flash4", shape="4x4096x16x2048x128256")
ATTENTION = {"layers": 16, "attention": gpu("cudnn", "attention", case="examples/llama")}
# What attention takes in all layers, by cuDNN's time alone.
attention_of_all_layers = bound("ms", "layers * attention", ATTENTION)
# What a step gains if its attention takes a fifth less time.
fifth_of_attention = bound("ms", "layers * attention / 5", ATTENTION)
# How much shorter the step is with FlashAttention 4.
gained_by_flash4 = bound("ms", "before - after", before=gpu("rewritten-update", "step"), after=gpu("flash4", "step"))
# The fp32 sum of the gradient of the vocabulary's matrix.
gradient_sum = bound("GB", "vocabulary * width * 4", vocabulary=128256, width=2048)
# What six passes over the sum take at the rate of a copy.
passes_saved = bound("ms", "6 * vocabulary * width * 4 / copy", vocabulary=128256, width=2048, copy=COPY)
# How much more memory the loss in one piece takes.
memory_of_one_piece = bound(
    "GB", "after - before", after=memory("wide", "step"), before=memory("rewritten-update", "step")
)
# GiB that the step with FlashAttention 4 needs with the parameters and AdamW's state.
flash4_needs = bound("", "(step + state) / 1024**3", step=memory("flash4", "step"), state=parameters_and_state)
# The time of a step that this site had set itself, in milliseconds.
goal_of_step = bound("ms", "goal / 1000", goal=235)
# How far the fastest step is from that goal.
goal_missed_by = bound("ms", "least - goal / 1000", goal=235, least=gpu("flash4-wide", "step"))

LABELS = {
    "rewritten-cudnn": {"label": "rewritten, cuDNN first", "short": "cuDNN first", "role": "ours"},
    "rewritten-update": {"label": "rewritten, AdamW compiled", "short": "AdamW compiled", "role": "ours"},
    "wide": {"label": "the same, the loss in one piece", "short": "one piece", "role": "ours"},
    "flash4": {"label": "the same, FlashAttention 4", "short": "FlashAttention 4", "role": "ours"},
    "flash4-wide": {"label": "FlashAttention 4, the loss in one piece", "short": "both", "role": "ours"},
    "flash4-ahead": {"label": "FlashAttention 4, AdamW beside, CUDA graph", "short": "CUDA graph", "role": "graph"},
}
CASE = Case(
    question="What do FlashAttention 4 and a loss in one piece still give, in time and in memory?",
    points=points,
    prepare=prepare,
    check_at={"both": [{"batch": 2, "tokens": 64, "layers": 2, "width": 64, "vocabulary": 256}]},
)
