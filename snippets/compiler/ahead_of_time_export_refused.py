"""Inputs and operators that export has to be told of, and all that is refused, beside what is not."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.export import Dim

from snippets.compiler.ahead_of_time_export_batch import Asked, X
from snippets.compiler.ahead_of_time_export_sizes import ANY, EVEN, ONE, TWO, AnyHeads, Heads, Pairs, Sum
from snippets.compiler.ahead_of_time_export_values import Branch, Cond, MeanOfAll, MeanOfSome, NumPy, Torch


# --8<-- [start:container]
@dataclass
class Sample:
    tokens: Tensor
    mask: Tensor


@dataclass
class Registered:
    tokens: Tensor
    mask: Tensor


torch.export.register_dataclass(Registered)


class Masked(nn.Module):
    def forward(self, sample: Sample | Registered) -> Tensor:
        return sample.tokens * sample.mask


# --8<-- [end:container]
# --8<-- [start:operator]
@torch.library.custom_op("ridgepoint_export::bare", mutates_args=())
def bare(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op("ridgepoint_export::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Calls(nn.Module):
    def __init__(self, operator: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, x: Tensor) -> Tensor:
        return self.operator(x)


# --8<-- [end:operator]
MASK = torch.ones(4, 8)
BATCH = ({0: Dim("batch", max=64)},)
REFUSED: dict[str, tuple[Asked, Asked]] = {
    "branch": (Asked(Branch()), Asked(Cond())),
    "count": (Asked(MeanOfSome()), Asked(MeanOfAll())),
    "fixed": (Asked(Heads(), shapes=BATCH), Asked(AnyHeads(), shapes=BATCH)),
    "one": (Asked(AnyHeads(), (X[:1],), ({0: Dim.DYNAMIC},)), Asked(AnyHeads(), (X[:2],), ({0: Dim.DYNAMIC},))),
    "pairs": (Asked(Pairs(), shapes=ANY), Asked(Pairs(), shapes=EVEN)),
    "equal": (Asked(Sum(), (X, MASK), TWO), Asked(Sum(), (X, MASK), ONE)),
    "container": (Asked(Masked(), (Sample(X, MASK),)), Asked(Masked(), (Registered(X, MASK),))),
    "numpy": (Asked(NumPy()), Asked(Torch())),
    "operator": (Asked(Calls(bare)), Asked(Calls(twice))),
}


def words(asked: Asked) -> str:
    """What export says: the kind of the error and the sentence that matters."""
    try:
        asked.export()
    except Exception as error:  # noqa: BLE001 - whatever kind it is, that is what is asked
        lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
        said = lines[1] if lines[0].startswith(("Constraints violated", "Found the following")) else lines[0]
        said = re.sub(r"<class '\S+\.(\w+)'>", r"<class '\1'>", said)  # wherever the class stands
        return f"{type(error).__name__}: {re.split(r'[.!:] | [(]unhinted', said)[0].rstrip('.')}"
    return "exported"
