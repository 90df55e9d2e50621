"""Ten pitfalls of using what is compiled: the code before and after, and what one sees before."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from snippets.reference.common_pitfalls_breaks import compiled, make_x, message, reason
from snippets.reference.common_pitfalls_graphs import (
    Generator,
    first_call_before,
    in_a_loop_before,
    late_mark,
    other_method_before,
    thrown_away_before,
)
from snippets.reference.common_pitfalls_strides import doubled, strides_before


# --8<-- [start:prefix]
def prefix_before() -> str:
    fast = torch.compile(Generator(), backend="eager")
    return loaded(fast.state_dict())


def prefix_after() -> str:
    model = Generator()
    model.compile(backend="eager")
    return loaded(model.state_dict())


def loaded(weights: dict[str, Tensor]) -> str:
    return message(lambda: Generator().load_state_dict(weights))


# --8<-- [end:prefix]


# --8<-- [start:inference]
class Positions(nn.Module):
    """Builds a table in its first call and keeps it, as some models do with their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.linspace(0, 1, 8)
        return self.linear(x) * self.table


def warmed_up(mode: Callable) -> str:
    fast = compiled(Positions())
    with mode():
        fast(make_x())
    return message(lambda: fast(make_x()).sum().backward())


# before: warmed_up(torch.inference_mode)
# after:  warmed_up(torch.no_grad)
# --8<-- [end:inference]


# --8<-- [start:dropout]
def dropout(**options: bool) -> str:
    """Eager and compiled, from the same seed of torch's."""
    torch.compiler.reset()
    results = []
    for function in (nn.functional.dropout, torch.compile(nn.functional.dropout, options=options)):
        torch.manual_seed(0)
        results.append(function(torch.ones(64)))
    return "the same numbers" if torch.equal(*results) else "other numbers than eager, from the same seed"


# before: dropout()
# after:  dropout(fallback_random=True)
# --8<-- [end:dropout]


# --8<-- [start:mask]
def mask_before(x: Tensor) -> Tensor:
    return x[x > 0].sum()


def mask_after(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0).sum()


# --8<-- [end:mask]


SYMPTOMS: dict[str, Callable[[], str]] = {
    "thrown away": thrown_away_before,
    "first call": first_call_before,
    "other method": other_method_before,
    "prefix": prefix_before,
    "late mark": lambda: late_mark(marked=(4, 5)),
    "in a loop": in_a_loop_before,
    "inference": lambda: warmed_up(torch.inference_mode),
    "dropout": dropout,
    "mask": lambda: reason(mask_before),
    "strides": lambda: doubled(strides_before),
}


def main() -> None:
    """Print each symptom."""
    for name, symptom in SYMPTOMS.items():
        print(f"==== {name}")
        print(symptom())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
