"""Softmax, softmax with a mask, and cross-entropy, each at several levels.

Run `python -m snippets.patterns.compare_levels cross_entropy` to check and time the levels of one.
"""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

import torch.nn.functional as F
from torch import Tensor

from kernels.cross_entropy import cross_entropy
from kernels.softmax import softmax
from snippets.patterns.levels import Component, Shape, compiled, scripted


# --8<-- [start:softmax]
def softmax_written(x: Tensor) -> Tensor:
    wide = x.float()
    e = torch.exp(wide - wide.detach().amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


def softmax_native(x: Tensor) -> Tensor:
    return F.softmax(x, -1)


# --8<-- [end:softmax]


# --8<-- [start:masked]
def masked_softmax_written(x: Tensor, keep: Tensor) -> Tensor:
    wide = x.float() + (1 - keep.float()) * -10000.0
    e = torch.exp(wide - wide.detach().amax(-1, keepdim=True))
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


def masked_softmax_native(x: Tensor, keep: Tensor) -> Tensor:
    return F.softmax(torch.where(keep, x, -torch.inf), -1)


# --8<-- [end:masked]


def masked_softmax(x: Tensor, keep: Tensor) -> Tensor:
    return softmax(torch.where(keep, x, -torch.inf))


# --8<-- [start:cross-entropy]
def cross_entropy_written(logits: Tensor, target: Tensor) -> Tensor:
    wide = logits.float()
    log_probabilities = torch.log(torch.softmax(wide, -1))
    return -log_probabilities.gather(1, target[:, None]).mean().to(logits.dtype)


def cross_entropy_native(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target)


# --8<-- [end:cross-entropy]


def scores(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Twice as far apart as normal numbers, so that a row's probabilities differ."""
    return {"x": (2 * torch.randn(shape, device=device)).to(dtype)}


def masked(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """As in a batch with padding: of each row a beginning counts."""
    rows, columns = shape
    lengths = torch.randint(1, columns + 1, (rows, 1), device=device)
    return {**scores(shape, dtype, device), "keep": torch.arange(columns, device=device) < lengths}


def classified(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    rows, classes = shape
    logits = scores(shape, dtype, device)["x"]
    return {"logits": logits, "target": torch.randint(0, classes, (rows,), device=device)}


SHAPES = {"tiny": (4, 256), "small": (256, 1024), "typical": (8192, 4096), "large": (8192, 16384)}
VOCABULARIES = {"tiny": (4, 256), "small": (256, 4096), "typical": (8192, 32000), "large": (8192, 128256)}

SOFTMAX = Component(
    name="softmax",
    levels={
        0: lambda: softmax_written,
        1: lambda: softmax_native,
        2: lambda: scripted(softmax_written),
        3: lambda: compiled(softmax_native),
        4: lambda: softmax,
    },
    reference=softmax_native,
    inputs=scores,
    gradients=("x",),
    sizes=("rows", "columns"),
    shapes=SHAPES,
)
MASKED_SOFTMAX = Component(
    name="masked_softmax",
    levels={
        0: lambda: masked_softmax_written,
        1: lambda: masked_softmax_native,
        2: lambda: scripted(masked_softmax_written),
        3: lambda: compiled(masked_softmax_native),
        4: lambda: masked_softmax,
    },
    reference=masked_softmax_native,
    inputs=masked,
    gradients=("x",),
    sizes=("rows", "columns"),
    shapes=SHAPES,
)
# --8<-- [start:levels]
CROSS_ENTROPY = Component(
    name="cross_entropy",
    levels={
        0: lambda: cross_entropy_written,
        1: lambda: cross_entropy_native,
        2: lambda: scripted(cross_entropy_written),
        3: lambda: compiled(cross_entropy_native),
        4: lambda: cross_entropy,
    },
    reference=cross_entropy_native,
    inputs=classified,
    gradients=("logits",),
    sizes=("rows", "vocabulary"),
    shapes=VOCABULARIES,
)
# --8<-- [end:levels]
COMPONENTS = (SOFTMAX, MASKED_SOFTMAX, CROSS_ENTROPY)
