"""A transformer block from the parts of each level, and each part alone: what of their gain is left in the whole?"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.rope import rope
from snippets.patterns import transformer_block as page
from snippets.patterns import transformer_block_alone
from snippets.patterns import transformer_block_eager as eager
from snippets.patterns.levels import Function, compiled
from tests.benchmarks import levels, wrong
from tests.benchmarks.bounds import bound, ceiling, gpu
from tests.benchmarks.case import Case, Point, Workload
from tests.benchmarks.own import own

WITH_SDPA = eager.Parts(
    eager.norm_written, eager.add_norm_written, eager.project_written, eager.rotate_written, eager.attend_native,
    eager.gated_written,
)  # fmt: skip
NATIVE = eager.Parts(
    eager.norm_native, eager.add_norm_native, eager.project_native, eager.rotate_written, eager.attend_native,
    eager.gated_native,
)  # fmt: skip
MORE: dict[Any, Callable[[], Function]] = {  # the block with one part of another level, and compiled with the kernels
    "0-attend": lambda: eager.assembled(WITH_SDPA),
    "1-norms": lambda: eager.assembled(NATIVE._replace(norm=page.norm_kernel, add_norm=page.add_norm_kernel)),
    "1-rotate": lambda: eager.assembled(NATIVE._replace(rotate=rope)),
    "1-gated": lambda: eager.assembled(NATIVE._replace(gated=page.gated_kernel)),
    "4-compiled": lambda: compiled(own(page.with_kernels())),
}
NAMES = {
    "norm": "rms norm", "add_norm": "add rms norm", "project": "qkv", "rotate": "rope", "attend": "attention",
    "gated": "gated mlp",
}  # fmt: skip


def points(device: torch.device) -> Iterator[Point]:
    """The block at each level, with one part exchanged at the typical shape; and there each part alone."""
    if device.type == "cpu":
        shape = dict(zip(page.BLOCK.sizes, page.BLOCK.shapes["tiny"], strict=True))
        yield Point(shape, "float32", "forward", ("calls",), ("level-0", "level-1", "level-3"), page.BLOCK.name)
        return
    for point in levels.points(device, page.COMPONENTS, {}):
        if tuple(point.shape.values()) != page.BLOCK.shapes["typical"]:
            yield replace(point, variants=(*(point.variants or ()), "level-4-compiled"))
        else:
            modes = ("device", "sustained") if point.direction == "both" else ("device",)
            yield replace(point, modes=modes, variants=(*(point.variants or ()), *(f"level-{name}" for name in MORE)))
    for component in transformer_block_alone.PARTS:
        shape = dict(zip(component.sizes, component.shapes["typical"], strict=True))
        variants = tuple(f"level-{level}" for level in component.levels)
        for direction, suffix in (("forward", " forward"), ("both", "")):
            name = NAMES[component.name] + suffix
            yield Point(shape, "bfloat16", direction, variants=variants, part=component.name, name=name)


def prepare(point: Point, device: torch.device) -> Workload:
    sizes, both = list(point.shape.values()), point.direction == "both"
    if point.part != page.BLOCK.name:
        workload = levels.prepare(point, device, transformer_block_alone.PARTS, WRONG)
        return replace(workload, flops=operations(point.part, sizes, both) or workload.flops)
    block = replace(page.BLOCK, levels={**page.BLOCK.levels, **MORE})
    workload = levels.prepare(point, device, (block,), WRONG)
    # no bound of bytes is drawn: matrix products take most of the time
    return replace(workload, bytes_read=0, bytes_written=0, flops=operations(page.BLOCK.name, sizes, both))


def operations(name: str, sizes: list[int], both: bool) -> int:
    """Of the products, whose backward has two for each; and of attention over the causal half, which has five for two.

    0 for a part that has none of either.
    """
    squares, attention = {"block": (16, 1), "project": (3, 0), "gated": (8, 0), "attend": (0, 1)}.get(name, (0, 0))
    batch, tokens, width = sizes
    products = 2 * squares * batch * tokens * width**2
    scores = 2 * attention * batch * tokens**2 * width
    return products * 3 + scores * 7 // 2 if both else products + scores


# ---- what the check must refuse -------------------------------------------------------------------------------------


def not_rotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return 1 * q, 1 * k


WRONG: levels.Wrong = {
    "block": {
        "not rotated": eager.assembled(NATIVE._replace(rotate=not_rotated)),
        "without attention": eager.assembled(NATIVE._replace(attend=lambda q, k, v: 0 * (q + k + v))),
        "the future not masked": eager.assembled(NATIVE._replace(attend=F.scaled_dot_product_attention)),
        "a norm 5% too large": eager.assembled(NATIVE._replace(norm=lambda *given: 1.05 * eager.norm_native(*given))),
        "the activation 10% too large": eager.assembled(
            NATIVE._replace(gated=lambda *given: 1.1 * eager.gated_native(*given))
        ),
        "the first residual left out": eager.assembled(
            NATIVE._replace(add_norm=lambda x, residual, weight: eager.add_norm_native(x, 0 * residual, weight))
        ),
    },
    "norm": {
        "last tile not written": wrong.cut(eager.norm_native),
        "no weight": lambda x, weight: eager.norm_native(x, 0 * weight + 1),
        "the mean subtracted": lambda x, weight: F.layer_norm(x, weight.shape, weight, None, 1e-5),
    },
    "add_norm": {
        "last tile not written": wrong.cut(eager.add_norm_native),
        "no residual": lambda x, residual, weight: eager.add_norm_native(x, 0 * residual, weight),
        "the sum is the norm": lambda x, residual, weight: 2 * (eager.add_norm_native(x, residual, weight)[0],),
    },
    "project": {
        "last token not written": wrong.changed(eager.project_native, lambda y: F.pad(y[..., :-1, :], (0, 0, 0, 1))),
        "keys for values": lambda x, weight: (
            *eager.project_native(x, weight)[:2],
            eager.project_native(x, weight)[1],
        ),
        "queries for keys": lambda x, weight: eager.project_native(x, weight.roll(x.shape[-1], 0)),
    },
    "rotate": {
        "not rotated": not_rotated,
        "keys not rotated": lambda q, k, cos, sin: (eager.rotate_written(q, k, cos, sin)[0], 1 * k),
        "rotated the other way": lambda q, k, cos, sin: eager.rotate_written(q, k, cos, -sin),
    },
    "attend": {
        "the future not masked": F.scaled_dot_product_attention,
        "scores 20% too large": lambda q, k, v: eager.attend_native(1.2 * q, k, v),
        "values for keys": lambda q, k, v: eager.attend_native(q, v, k),
    },
    "gated": {
        "last tile not written": wrong.cut(eager.gated_native),
        "gate and up exchanged": lambda x, weight: eager.gated_native(x, torch.cat(weight.chunk(2)[::-1])),
        "no activation": lambda x, weight: F.linear(x, weight.chunk(2)[0]) * F.linear(x, weight.chunk(2)[1]),
    },
}


# The part of a step that its matmuls and attention take at the peak rate.
matmul_part = bound(
    "%", "(6 * 16 * batch * tokens * width**2 + 7 * batch * tokens**2 * width) / rate / time",
    batch=4, tokens=2048, width=2048, rate=ceiling("bfloat16", mode="burst"), time=gpu("level-1", "block"),
)  # fmt: skip
# What both norms take together.
norms = bound("us", "first + second", first=gpu("{variant}", "rms norm"), second=gpu("{variant}", "add rms norm"))
# What the parts save at level 1, each timed alone.
parts = bound("ms", "a0 - a1 + b0 - b1 + c0 - c1 + d0 - d1 + e0 - e1 + f0 - f1", {
    f"{letter}{level}": gpu(f"level-{level}", f"{name}{{when}}")
    for letter, name in zip("abcdef", NAMES.values(), strict=True)
    for level in (0, 1)
})  # fmt: skip
# What the whole block saves at level 1.
whole = bound("ms", "one - two", one=gpu("level-0", "block{when}"), two=gpu("level-1", "block{when}"))
kept = bound("%", "whole / parts", whole=whole, parts=parts)  # The part of what the parts save that the block keeps.
# What kernels for both norms save in the block.
norms_in_block = bound("us", "one - two", one=gpu("level-1", "block"), two=gpu("level-1-norms", "block"))
# What kernels for both norms save where each is timed alone.
norms_alone = bound(
    "us", "a1 - a4 + b1 - b4", a1=gpu("level-1", "rms norm"), a4=gpu("level-4", "rms norm"),
    b1=gpu("level-1", "add rms norm"), b4=gpu("level-4", "add rms norm"),
)  # fmt: skip
# What a kernel for the rotation saves in the block.
rope_in_block = bound("us", "one - two", one=gpu("level-1", "block"), two=gpu("level-1-rotate", "block"))
# What a kernel for the rotation saves where it is timed alone.
rope_alone = bound("us", "one - two", one=gpu("level-1", "rope"), two=gpu("level-4", "rope"))
# What a kernel for SwiGLU saves in the block.
gated_in_block = bound("us", "one - two", one=gpu("level-1", "block"), two=gpu("level-1-gated", "block"))
# What a kernel for SwiGLU saves where it is timed alone.
gated_alone = bound("us", "one - two", one=gpu("level-1", "gated mlp"), two=gpu("level-4", "gated mlp"))

LABELS = {
    "level-0-attend": {"label": "as first written, but SDPA", "short": "0, SDPA", "role": "rewrite"},
    "level-1-norms": {"label": "native operations, but norms of Triton", "short": "1, norms", "role": "rewrite-2"},
    "level-1-rotate": {
        "label": "native operations, but rotation of Triton",
        "short": "1, rotation",
        "role": "rewrite-2",
    },
    "level-1-gated": {"label": "native operations, but SwiGLU of Triton", "short": "1, SwiGLU", "role": "rewrite-2"},
    "level-4-compiled": {"label": "Triton, compiled", "short": "4 compiled", "role": "compile-max"},
}
CASE = Case(
    question="What of the gain of a block's parts is left in the whole block?",
    check_at={"forward both": [{"part": part, "batch": 1, "tokens": 32, "width": 256} for part in WRONG]},
)
