"""Ten pitfalls of capturing a function: the code before and after, and what one sees before."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from snippets.reference.common_pitfalls_breaks import (
    calls_disabled,
    caught_before,
    compiled,
    entries,
    error,
    reason,
    repeated_before,
    skipped_before,
    unguarded_before,
)
from snippets.reference.common_pitfalls_effects import agree, late_hook, printed, reordered_before, seed_before


# --8<-- [start:no-fake]
@torch.library.custom_op("ridgepoint::double_without_fake", mutates_args=())
def double_without_fake(x: Tensor) -> Tensor:
    return 2 * x


@torch.library.custom_op("ridgepoint::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    return 2 * x


@double.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


# --8<-- [end:no-fake]


# --8<-- [start:alias]
def alias_before(x: Tensor) -> Tensor:
    return torch.cond(x.mean() > 0, lambda x: x, lambda x: x - 1, (x,))


def alias_after(x: Tensor) -> Tensor:
    return torch.cond(x.mean() > 0, lambda x: x.clone(), lambda x: x - 1, (x,))


# --8<-- [end:alias]


SYMPTOMS: dict[str, Callable[[], str]] = {
    "skipped": lambda: reason(skipped_before),
    "repeated": lambda: entries(repeated_before),
    "caught": error(caught_before),
    "late hook": lambda: late_hook(forget=False),
    "no fake": error(lambda x: double_without_fake(x).sin()),
    "alias": error(alias_before),
    "unguarded": error(unguarded_before, fullgraph=True),
    "disabled": error(calls_disabled, fullgraph=True),
    "reordered": lambda: printed(reordered_before),
    "seed": lambda: agree(seed_before, compiled(seed_before)),
}


def main() -> None:
    """Print each symptom."""
    for name, symptom in SYMPTOMS.items():
        print(f"==== {name}")
        print(symptom())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
