"""Three changes to the training step of a Hugging Face Llama, each alone and all together, and Liger's kernels."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from snippets.examples.hf_llama import LLAMA_1B, LLAMA_8B, RUNGS
from snippets.examples.llama_model import TINY as SMALL
from snippets.examples.llama_model import Loss, make_model, make_optimizer
from snippets.validation.timing import nothing
from tests.benchmarks.bounds import bound, memory
from tests.benchmarks.case import Call, Case, Point, Results, Workload
from tests.benchmarks.examples.llama import Step, liger

BY_WIDTH = {2048: LLAMA_1B, 4096: LLAMA_8B}
WHOLE = {"batch": 4, "tokens": 4096, "layers": 16, "width": 2048, "vocabulary": 128256}
HALF = WHOLE | {"batch": 2}
# An eighth of an 8B model: 4 of its 32 layers and an eighth of its vocabulary, so that each part has its share.
EIGHTH = {"batch": 2, "tokens": 4096, "layers": 4, "width": 4096, "vocabulary": 16032}
TINY = {"batch": 2, "tokens": 64, "layers": 2, "width": 64, "vocabulary": 256}
LAYERS, MIXED = "layers", "fp32 weights"  # parts: forward and backward without an update, and under autocast
LARGER = "eager", "layers", "loss", "all", "triton", "liger"
STEPS = "eager", "causal", "layers", "loss", "update", "all", "triton", "triton-update", "liger"


def points(device: torch.device) -> Iterator[Point]:
    """A Llama 1B; an eighth of an 8B; half the batch of the 1B; and that with fp32 weights."""
    if device.type == "cpu":
        yield Point(TINY, "float32", "both", ("calls",), ("eager", "layers"))
        return
    yield Point(WHOLE, "bfloat16", "both", ("sustained",), STEPS, name="1B")
    yield Point(EIGHTH, "bfloat16", "both", ("sustained",), LARGER, LAYERS, "8B layers")
    yield Point(HALF, "bfloat16", "both", ("sustained",), ("eager", "all", "triton-update", "liger"), name="24 GB card")
    yield Point(HALF, "bfloat16", "both", ("sustained",), ("eager", "all", "liger"), MIXED, "fp32 weights")


def prepare(point: Point, device: torch.device) -> Workload:
    """Random weights and tokens. The learning rate is zero: a step does all of its work and changes nothing."""
    step = Patched(point, device)
    changed: dict[str, Callable[[nn.Module], Loss]] = {**RUNGS, "liger": liger}
    if point.part == LAYERS:
        without = {name: partial(step.of, rung, nothing) for name, rung in changed.items()}
        return step.workload(without)
    builds = {name: partial(step.of, rung) for name, rung in changed.items()}
    for name, rung in {"update": "eager", "all": "all", "triton-update": "triton"}.items():
        builds[name] = partial(step.updated, changed[rung])
    return step.workload(builds)


class Patched(Step):
    """As in examples/llama, of a 1B or an 8B; with fp32 weights the forward runs under autocast, as in the Trainer."""

    def __init__(self, point: Point, device: torch.device):
        self.batch, self.length, self.layers, width, vocabulary = point.shape.values()
        base = BY_WIDTH.get(width, SMALL | {"tie_word_embeddings": True})
        self.sizes = dict(base) | {"num_hidden_layers": self.layers, "vocab_size": vocabulary}
        self.mixed = point.part == MIXED
        self.model = make_model(self.sizes, device, torch.float32 if self.mixed else getattr(torch, point.dtype))
        self.optimizer = make_optimizer(self.model, lr=0.0)
        self.tokens = torch.randint(vocabulary, (self.batch, self.length), device=device)
        named = self.model.named_parameters()
        self.watched = [name for name, p in named if self.layers < 16 or p.dim() == 1]

    def of(self, rung: Callable[[nn.Module], Loss], update: Call | None = None) -> Call:
        """Variants of other sizes leave blocks in the allocator that fit nothing here."""
        if self.tokens.is_cuda:
            torch.cuda.empty_cache()
        return super().of(rung, update)

    def updated(self, rung: Callable[[nn.Module], Loss]) -> Call:
        return self.of(rung, self.compiled_update)

    def call(self, loss_of: Loss, update: Call) -> Results:
        """Gradients of fp32 weights come from bf16 products: they are compared as bf16."""
        if not self.mixed:
            return super().call(loss_of, update)
        found = super().call(partial(under_autocast, loss_of), update)
        return {name: t if name == "loss" else t.to(torch.bfloat16) for name, t in found.items()}


def under_autocast(loss_of: Loss, tokens: Tensor) -> Tensor:
    with torch.autocast(tokens.device.type, torch.bfloat16):
        return loss_of(tokens)


# The parameters of the 1B, whose embeddings are also its last layer.
PARAMETERS = "(16 * (2 * width**2 + 2 * width**2 // 4 + 3 * width * inner) + width * vocabulary)"
SIZES = {"width": 2048, "inner": 8192, "vocabulary": 128256}
# Weights and AdamW's two moments, all in bf16.
state = bound("GB", f"3 * 2 * {PARAMETERS}", SIZES)
# Weights and AdamW's two moments, all in fp32.
state_fp32 = bound("GB", f"3 * 4 * {PARAMETERS}", SIZES)
# What a step needs in all: its own peak, weights and optimizer state.
needs = bound("GB", "peak + state", peak=memory("{variant}", "{at}"), state=state)
# The same with fp32 weights.
needs_fp32 = bound("GB", "peak + state", peak=memory("{variant}", "{at}"), state=state_fp32)
# The memory that such a card is sold with.
card = bound("GB", "gigabytes * 10**9", gigabytes=24)

LABELS = {
    "causal": {"label": "whole loss compiled, causal", "short": "loss compiled", "role": "compile"},
    "layers": {"label": "each layer compiled", "short": "layers compiled", "role": "compile-max"},
    "loss": {"label": "loss in chunks", "role": "rewrite"},
    "update": {"label": "AdamW compiled", "role": "compile-max"},
    "all": {"label": "all three changes", "short": "all three", "role": "ours"},
    "triton": {"label": "layers and loss by Triton kernels", "short": "Triton kernels", "role": "ours"},
    "triton-update": {"label": "Triton kernels, AdamW compiled", "short": "kernels, AdamW", "role": "ours"},
}
CASE = Case(
    question="What is each of three changes to a Hugging Face Llama's training step worth, in time and in memory?",
    check_at={"both": [TINY, TINY | {"part": LAYERS}, TINY | {"part": MIXED}]},
)
