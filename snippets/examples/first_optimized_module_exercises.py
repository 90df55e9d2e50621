"""The five steps of "Your first optimized module". Copy this file, do each step, and let its checkpoint judge it:

    cp snippets/examples/first_optimized_module_exercises.py my_module.py
    python -m pytest tests/exercises/test_first_optimized_module.py --mine my_module.py -k one

All that a checkpoint knows of the module is `make_draft` and `make_input`. In the end, put your own module there.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor, nn

from snippets.examples.first_optimized_module_draft import make_draft, make_input  # noqa: F401  the checkpoints ask


# --8<-- [start:one]
def profile(model: Callable, x: Tensor, path: Path) -> dict[str, int]:
    """One: write a trace of five warm calls to `path`, and count: how often does one call run each operation?

    The names are those of the trace, such as "aten::mul".
    """
    return {}  # yours


# --8<-- [end:one]


# --8<-- [start:two]
AT_MOST = 1 / 4  # of the draft's operations; with a module of your own, say here what you expect


class Better(nn.Module):
    """Two: the same function of x, with the draft's weights, in few operations and without a wait."""

    def __init__(self, draft: nn.Module):
        super().__init__()
        self.draft = draft  # yours: take what you need of the draft, and leave the draft as it is

    def forward(self, x: Tensor) -> Tensor:
        return self.draft(x)  # yours


# --8<-- [end:two]


# --8<-- [start:three]
def compiled(model: nn.Module) -> Callable:
    """Three: the model compiled, as one graph that no batch size breaks, and not anew for each batch size."""
    return model  # yours


# --8<-- [end:three]


# --8<-- [start:four]
def judge(candidate: Callable, draft: nn.Module, inputs: Sequence[Tensor]) -> bool:
    """Four: whether the candidate computes the draft's function, as exactly as the draft does.

    The candidate may be anything: it may keep its first result for ever, or overwrite its input.
    """
    return True  # yours


# --8<-- [end:four]


# --8<-- [start:five]
def ship(model: nn.Module, path: Path) -> None:
    """Five: write a package that a process without this file can load, and call with any batch from 1 to 4096."""
    # yours


# --8<-- [end:five]


if __name__ == "__main__":
    print("Copy this file, do each step, and run the checkpoints: the first lines of the file say how.")
