"""Token and positional embeddings, rotary embedding, each at several levels; sparse gradients; tied weights.

Run `python -m snippets.patterns.compare_levels rotary` to check and time the levels of one.
"""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

import torch.nn.functional as F
from torch import Tensor

from kernels.rope import rope
from snippets.patterns.embeddings_rotary import heads, rotary_native, rotary_written
from snippets.patterns.levels import Component, Shape, compiled, scripted


# --8<-- [start:tokens]
def embedding_written(ids: Tensor, weight: Tensor) -> Tensor:
    return weight[ids]


def embedding_native(ids: Tensor, weight: Tensor) -> Tensor:
    return F.embedding(ids, weight)


# --8<-- [end:tokens]


# --8<-- [start:positions]
def positional_written(ids: Tensor, weight: Tensor, positions: Tensor) -> Tensor:
    places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    return weight[ids] + positions[places]


def positional_native(ids: Tensor, weight: Tensor, positions: Tensor) -> Tensor:
    return F.embedding(ids, weight) + positions[: ids.shape[1]]


# --8<-- [end:positions]


# --8<-- [start:update]
def update(weight: Tensor, optimizer: torch.optim.Optimizer, ids: Tensor, incoming: Tensor, sparse: bool) -> None:
    """A step of an embedding: with sparse=True its gradient holds the rows of `ids`, else the whole table."""
    F.embedding(ids, weight, sparse=sparse).backward(incoming)
    optimizer.step()
    optimizer.zero_grad()


# --8<-- [end:update]


# --8<-- [start:tied]
def tied(ids: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """The smallest language model: one table turns tokens into vectors, and vectors into logits."""
    return F.cross_entropy(F.embedding(ids, weight) @ weight.t(), target)


def untied(ids: Tensor, target: Tensor, weight: Tensor, head: Tensor) -> Tensor:
    return F.cross_entropy(F.embedding(ids, weight) @ head.t(), target)


# --8<-- [end:tied]


def drawn(shape: tuple[int, ...], vocabulary: int, device: torch.device) -> Tensor:
    """Tokens as in text: a few are frequent, and most of the vocabulary does not occur in a batch."""
    return (vocabulary * torch.rand(shape, device=device) ** 3).long()


def of_tokens(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    batch, tokens, vocabulary, width = shape
    weight = torch.randn(vocabulary, width, device=device).to(dtype)
    return {"ids": drawn((batch, tokens), vocabulary, device), "weight": weight}


def of_places(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    _, tokens, _, width = shape
    positions = torch.randn(2 * tokens, width, device=device).to(dtype)  # for texts of up to twice the length
    return {**of_tokens(shape, dtype, device), "positions": positions}


TABLES = {
    "tiny": (2, 8, 64, 64),
    "small": (1, 256, 32000, 256),
    "typical": (2, 4096, 32000, 4096),
    "large": (2, 4096, 128256, 4096),
}

EMBEDDING = Component(
    name="embedding",
    levels={
        0: lambda: embedding_written,
        1: lambda: embedding_native,
        2: lambda: scripted(embedding_written),
        3: lambda: compiled(embedding_native),
    },
    reference=embedding_native,
    inputs=of_tokens,
    gradients=("weight",),
    sizes=("batch", "tokens", "vocabulary", "width"),
    shapes=TABLES,
)
POSITIONAL = Component(
    name="positional",
    levels={
        0: lambda: positional_written,
        1: lambda: positional_native,
        2: lambda: scripted(positional_written),
        3: lambda: compiled(positional_native),
    },
    reference=positional_native,
    inputs=of_places,
    gradients=("weight", "positions"),
    sizes=("batch", "tokens", "vocabulary", "width"),
    shapes=TABLES,
)
# --8<-- [start:levels]
ROTARY = Component(
    name="rotary",
    levels={
        0: lambda: rotary_written,
        1: lambda: rotary_native,
        2: lambda: scripted(rotary_written),
        3: lambda: compiled(rotary_native),
        4: lambda: rope,
    },
    reference=rotary_native,
    inputs=heads,
    gradients=("q", "k"),
    sizes=("batch", "tokens", "heads", "kv_heads", "head_dim"),
    shapes={"tiny": (1, 8, 2, 1, 32), "small": (8, 1, 32, 8, 128), "typical": (2, 4096, 32, 8, 128),
            "large": (16, 4096, 32, 8, 128)},
)  # fmt: skip
# --8<-- [end:levels]
COMPONENTS = (EMBEDDING, POSITIONAL, ROTARY)
