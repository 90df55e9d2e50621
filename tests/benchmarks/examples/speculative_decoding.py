"""What it costs to check several tokens of one sequence in one decoding step."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from snippets.examples.generation_step import Decoder
from snippets.examples.speculative_decoding import Verifier
from tests.benchmarks.bounds import bound, wall
from tests.benchmarks.case import Case, Point, Results, Variant, Workload
from tests.benchmarks.examples.generation import Step

SMALL = {"tokens": 3, "context": 40, "layers": 2, "width": 128, "vocabulary": 256}


def points(device: torch.device) -> Iterator[Point]:
    """An 8B, and the 1B that may draft for it; one token also by Triton kernels."""
    if device.type == "cpu":
        yield Point(SMALL, "float32", modes=("calls",), variants=("static",))
        return
    of_1b = {"context": 512, "layers": 16, "width": 2048, "vocabulary": 128256}
    of_8b = {"context": 512, "layers": 32, "width": 4096, "vocabulary": 128256}
    for name, shape, widths in (("8B", of_8b, (1, 2, 4, 8, 16)), ("1B", of_1b, (1, 8))):
        for tokens in widths:
            variants = ("static", "graph", "triton") if tokens == 1 else ("static", "graph")
            named = f"{name} {tokens}"
            yield Point({"tokens": tokens} | shape, "bfloat16", modes=("calls",), variants=variants, name=named)


def prepare(point: Point, device: torch.device) -> Workload:
    """Random weights, tokens, keys and values."""
    step = Verified(point, device)
    builds = {"static": step.static, "graph": step.graph, "triton": step.triton}
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return Workload(
        variants={name: Variant(builds[name]) for name in point.variants or builds},
        baseline="static",
        reference=step.reference,
        bytes_read=step.bytes_read(),
        bytes_written=0,
        flops=0,
        mix="read",
        wrong=step.wrong(),
    )


class Verified(Step):
    """Neighbouring tokens of one sequence, the first of them behind the context."""

    def __init__(self, point: Point, device: torch.device):
        shape = dict(point.shape)
        tokens = shape.pop("tokens")
        super().__init__(replace(point, shape={"batch": 1} | shape), device)
        cache, self.batch = self.plain.cache, tokens
        self.plain = Verifier(self.model, tokens, self.length, self.kept)
        self.plain.cache = cache
        self.tokens = torch.randint(shape["vocabulary"], (tokens,), device=device)
        self.positions = torch.arange(self.context, self.context + tokens, device=device)

    def triton(self) -> Callable[[], object]:
        if self.batch > 1:
            raise NotImplementedError("the kernels decode one token")
        return super().triton()

    def wrong(self) -> dict[str, Callable[[Results], Results]]:
        def each_alone() -> Tensor:
            decoder = Decoder(self.model, self.batch, self.length, self.kept)
            for own, whole in zip(decoder.cache, self.plain.cache, strict=True):
                for alone, kept in zip(own, whole, strict=True):
                    alone[:, :, : self.context] = kept[:, :, : self.context]
            return decoder(self.tokens, self.positions)

        def behind_each_other() -> Tensor:
            decoder = self.changed()
            decoder.places = decoder.places - self.batch + 1
            return decoder(self.tokens, self.positions)

        found = {
            "a token does not see those before it in the draft": each_alone,
            "a token sees those behind it in the draft": behind_each_other,
        }
        told_apart = self.batch > 1 and self.context < 8  # of hundreds of places, one changes less than bf16 rounds
        return super().wrong() | {name: partial(self.spoilt, call) for name, call in found.items() if told_apart}


CHECKED = wall("graph", "{at}")
# How much longer a step with so many tokens takes than a step with one.
costs = bound("x", "many / one", many=CHECKED, one=wall("graph", "8B 1"))
# The same of the 1B and eight tokens.
costs_1b = bound("x", "many / one", many=wall("graph", "1B 8"), one=wall("graph", "1B 1"))
# Tokens that must be accepted per step, so that n-gram lookup pays: each step gives one more.
needed = bound("", "many / one - 1", many=CHECKED, one=wall("graph", "8B 1"))
# The same beside the Triton kernels.
needed_beside_triton = bound("", "many / one - 1", many=CHECKED, one=wall("triton", "8B 1"))
# The same with the 1B as draft model, which decodes `k` tokens first.
needed_with_1b = bound(
    "", "(many + k * draft) / one - 1", many=CHECKED, draft=wall("graph", "1B 1"), one=wall("graph", "8B 1")
)
# Expected tokens per step, if `k` drafted tokens are each right in `percent` of cases.
expected = bound("", "(1 - (percent / 100) ** (k + 1)) / (1 - percent / 100)")

# Tokens a second of steps that check a draft, on average.
tokens_expected = bound("", "(1 - (percent / 100) ** (k + 1)) / (1 - percent / 100) / many", many=CHECKED)

LABELS = {
    "static": {"label": "our step, static cache", "short": "our step", "role": "rewrite"},
    "graph": {"label": "compiled, CUDA graph", "short": "CUDA graph", "role": "graph"},
    "triton": {"label": "Triton kernels", "role": "ours"},
}
CASE = Case(
    question="What does a decoding step cost that checks several tokens of one sequence?",
    check_at={"forward": [SMALL | {"context": 4}, SMALL | {"tokens": 1}]},
)
