"""The Llama step with FlashAttention 4, and with the loss in one piece, beside the fastest rungs of examples/llama."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

from snippets.examples import llama_flash4
from snippets.examples.llama import RUNGS
from snippets.examples.llama_model import Loss
from tests.benchmarks.bounds import Input, bound, ceiling, gpu, memory
from tests.benchmarks.case import Call, Case, Point, Workload
from tests.benchmarks.examples.llama import FEW, WHOLE, Step, parameters_and_state

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
    step = Step(point, device)
    cudnn = RUNGS["rewritten-cudnn"]

    def of(rung: Callable[[nn.Module], Loss]) -> Call:
        """With the compiled update; where layers are few, compiling it is not worth the while."""
        return step.of(rung, step.compiled_update if step.layers == 16 else None)

    return step.workload(
        {
            "eager": partial(step.of, RUNGS["eager"]),
            "rewritten-cudnn": partial(of, cudnn),
            "rewritten-update": partial(of, cudnn),
            "wide": partial(of, llama_flash4.wide),
            "flash4": partial(of, llama_flash4.flash4),
            "flash4-wide": partial(of, llama_flash4.flash4_wide),
            "flash4-ahead": partial(step.ahead, llama_flash4.flash4),
        }
    )


COPY = ceiling("copy", case="examples/llama-flash4", shape="4x4096x16x2048x128256")
ATTENTION: dict[str, Input] = {"layers": 16, "attention": gpu("cudnn", "attention", case="examples/llama")}
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

LABELS = {
    "rewritten-cudnn": {"label": "rewritten, cuDNN first", "short": "cuDNN first", "role": "ours"},
    "rewritten-update": {"label": "rewritten, AdamW compiled", "short": "AdamW compiled", "role": "ours"},
    "wide": {"label": "the same, the loss in one piece", "short": "one piece", "role": "ours"},
    "flash4-wide": {"label": "FlashAttention 4, the loss in one piece", "short": "both", "role": "ours"},
    "flash4-ahead": {"label": "FlashAttention 4, AdamW beside, CUDA graph", "short": "CUDA graph", "role": "graph"},
}
CASE = Case(
    question="What do FlashAttention 4 and a loss in one piece still give, in time and in memory?",
    check_at={"both": [{"batch": 2, "tokens": 64, "layers": 2, "width": 64, "vocabulary": 256}]},
)
