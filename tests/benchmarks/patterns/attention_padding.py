"""Attention over rows of unequal length: what padding costs, and what each way to leave it out costs."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from snippets.patterns import attention_padding_masks as masks
from snippets.patterns import attention_padding_varlen as varlen
from snippets.patterns.attention_padding_masks import make_blocks, make_mask
from snippets.patterns.attention_padding_packing import packed_inside
from snippets.patterns.attention_padding_varlen import make_packing, pack, spread_lengths
from tests.benchmarks import sides, wrong
from tests.benchmarks.bounds import bound, captured, gpu
from tests.benchmarks.case import Call, Case, Point, Results, Variant, Workload

SIZE = 128  # of a head
HEADS_AT_ONCE = 4  # in the float64 reference, so that its scores fit into memory
PARTS = {"causal": "causal", "full": "bidirectional"}  # as pages name them
Way = Callable[..., Tensor]  # q, k and v to the result


def points(device: torch.device) -> Iterator[Point]:
    """Medium, long and short rows, causal or not; of short ones the host's time, too, and nested tensors with it."""
    if device.type == "cpu":
        on_a_cpu = ("formula", "mask", "mask-float", "causal-only")
        for part in PARTS:
            yield Point({"rows": 4, "tokens": 96, "heads": 2}, "float32", "both", ("calls",), on_a_cpu, part)
        return
    sizes = {"medium": (8, 2048), "long": (2, 8192), "short": (16, 512)}
    shapes = {name: {"rows": rows, "tokens": tokens, "heads": 16} for name, (rows, tokens) in sizes.items()}
    forward = "medium causal forward"
    yield Point(shapes["medium"], "bfloat16", "forward", variants=ON_THE_GPU, part="causal", name=forward)
    for name, shape in shapes.items():
        for part, called in PARTS.items():
            yield Point(shape, "bfloat16", "both", variants=ON_THE_GPU, part=part, name=f"{name} {called}")
    yield Point(shapes["short"], "bfloat16", "both", ("calls",), part="causal")


ON_THE_GPU = (  # all but nested tensors, which wait for the host
    "formula", "mask", "mask-float", "causal-only", "flex", "packed-inside", "packed-gradient", "varlen",
)  # fmt: skip


def prepare(point: Point, device: torch.device) -> Workload:
    """Random q, k and v, at padding too: a way that looks there is found out. No gradient comes in at padding."""
    rows, tokens, heads = point.shape.values()
    causal = point.part == "causal"
    dtype, training = getattr(torch, point.dtype), point.direction == "both"
    on_the_host = spread_lengths(rows, tokens)
    lengths, packing = on_the_host.to(device), make_packing(on_the_host, tokens, device)
    shape = (rows, tokens, heads, SIZE if device.type == "cuda" else 16)
    inputs = [torch.randn(shape, device=device).to(dtype) for _ in range(3)]
    everywhere = torch.randn(shape, device=device).to(dtype)
    incoming = everywhere * masks.real_tokens(lengths, tokens)[..., None, None]
    mask = make_mask(lengths, tokens, causal)

    names = ("output", "q.grad", "k.grad", "v.grad")
    step = sides.both if training else sides.forward

    def call(way: Way, packed: bool = False, coming: Tensor = incoming) -> Call:
        given = [pack(t, packing) if packed else t for t in (*inputs, coming)]
        leaves = tuple(t.detach().requires_grad_(training) for t in given[:3])
        return step(way, leaves, (), (given[3],))

    def results(returned: object, packed: bool = False) -> Results:
        """At real tokens."""
        found = sides.tupled(returned)  # type: ignore[arg-type]
        return dict(zip(names, (t if packed else pack(t, packing) for t in found), strict=False))

    def padded(way: Callable[[], Way]) -> Variant:
        return Variant(lambda: call(way()), results)

    def packed(way: Way) -> Variant:
        return Variant(lambda: call(partial(way, packing=packing, causal=causal), True), partial(results, packed=True))

    def wrongly(way: Way, coming: Tensor = incoming) -> Callable[[Results], Results]:
        return lambda baseline: results(call(way, coming=coming)())

    def compiled() -> Way:
        attend = torch.compile(flex_attention, dynamic=False)
        return partial(masks.flex, blocks=make_blocks(lengths, tokens, causal), attend=attend)

    formula, neighbours = partial(masks.formula, mask=mask), mask.roll(1, -1)
    not_right = {
        "5% too large": wrongly(wrong.scaled(formula)),
        "scores 10% too large": wrongly(lambda q, k, v: formula(1.1 * q, k, v)),
        "the mask moved by one": wrongly(partial(masks.formula, mask=neighbours)),
    }
    if causal:
        not_right["the future not masked"] = wrongly(partial(masks.formula, mask=make_mask(lengths, tokens, False)))
    else:
        not_right["padding looked at"] = wrongly(partial(masks.formula, mask=torch.ones_like(mask)))
        not_right["causal"] = wrongly(partial(masks.formula, mask=make_mask(lengths, tokens, True)))
    if training and not causal:
        not_right["a gradient at padding"] = wrongly(formula, everywhere)
    work = sum(length * (length + 1) / 2 if causal else length**2 for length in on_the_host.tolist())
    moved = len(packing.index) * heads * shape[-1] * dtype.itemsize
    return Workload(
        variants={
            "formula": padded(lambda: formula),
            "mask": padded(lambda: partial(masks.with_mask, mask=mask)),
            "mask-float": padded(lambda: partial(masks.with_mask, mask=masks.as_float(mask, dtype))),
            **({"causal-only": padded(lambda: masks.causal_only)} if causal else {}),
            "flex": padded(compiled),
            "packed-inside": padded(lambda: partial(varlen.packed_inside, packing=packing, causal=causal)),
            "packed-gradient": padded(lambda: partial(packed_inside, packing=packing, causal=causal)),
            "varlen": packed(varlen.variable_length),
            "nested": packed(varlen.nested),
        },
        baseline="formula",
        reference=lambda: in_float64(inputs, incoming, on_the_host, causal, training),
        bytes_read=(4 if training else 3) * moved,
        bytes_written=(4 if training else 1) * moved,
        flops=round((2 + 5 * training) * 2 * work * heads * shape[-1]),  # two products, and five in backward
        wrong=not_right,
    )


def in_float64(inputs: list[Tensor], incoming: Tensor, lengths: Tensor, causal: bool, training: bool) -> Results:
    """Each row alone, without its padding, and some heads of it at a time."""
    found: list[list[Tensor]] = []
    for row, length in enumerate(lengths.tolist()):
        parts = []
        for head in range(0, incoming.shape[2], HEADS_AT_ONCE):
            here = (row, slice(length), slice(head, head + HEADS_AT_ONCE))
            q, k, v = leaves = [t[here].detach().double().requires_grad_(training) for t in inputs]
            scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
            if causal:
                scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
            output = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
            grads = torch.autograd.grad(output, leaves, incoming[here].double()) if training else ()
            parts.append((output.detach(), *grads))
        found.append([torch.cat(part, 1) for part in zip(*parts, strict=True)])
    together = (torch.cat(part) for part in zip(*found, strict=True))
    return dict(zip(("output", "q.grad", "k.grad", "v.grad"), together, strict=False))


# The part of all scores that belongs to padding, or to no token at all.
needless_scores = bound(
    "%", "1 - (115**2 + 1395**2 + 627**2 + 2048**2 + 1139**2 + 371**2 + 1651**2 + 883**2) / (rows * tokens**2)",
    rows=8, tokens=2048,
)  # fmt: skip
# The rate with the flag alone, if the scores of padding count as work.
rate_with_padding = bound(
    "TFLOP/s", "7 * rows * tokens * (tokens + 1) * heads * size / time",
    rows=8, tokens=2048, heads=16, size=128, time=gpu("causal-only", "medium causal"),
)  # fmt: skip
# The part of all tokens that are real.
real_tokens = bound("%", "(115 + 1395 + 627 + 2048 + 1139 + 371 + 1651 + 883) / (rows * tokens)", rows=8, tokens=2048)
# What packing around the call takes more than attention on packed rows.
packing = bound(
    "us", "around - alone", around=gpu("packed-inside", "medium causal"), alone=gpu("varlen", "medium causal")
)
# The part of the tokens that are real with two rows of 8192.
real_in_two_rows = bound("%", "(1843 + 8192) / (rows * tokens)", rows=2, tokens=8192)
# How many times as long making the block mask takes as the attention with it.
making_a_mask = bound(
    "x", "making / attention",
    making=captured("making", "block mask, causal", of="patterns/attention_padding_backends"),
    attention=gpu("flex", "medium causal"),
)  # fmt: skip

LABELS = {
    "mask-float": {"label": "SDPA, float mask", "short": "float mask", "role": "rewrite-2"},
    "causal-only": {"label": "SDPA, is_causal alone", "short": "is_causal", "role": "peer-1"},
    "packed-inside": {"label": "varlen_attn, packed around it", "short": "packed around", "role": "peer-2"},
    "packed-gradient": {
        "label": "varlen_attn, packed around it, own gradient",
        "short": "own gradient",
        "role": "peer-2",
    },
}
CASE = Case(
    question="Which attention for a training batch whose rows differ in length, and what does padding cost?",
    check_at={"forward both": [{"part": part, "rows": 4, "tokens": 96, "heads": 2} for part in PARTS]},
)
