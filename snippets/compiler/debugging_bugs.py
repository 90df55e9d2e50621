"""A module with nothing wrong in it, eight functions with a bug planted in each, and what `bisect` says of them.

Run `python -m snippets.compiler.debugging_bugs`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.compiler.debugging import bisect, inside
from snippets.compiler.debugging_bugs_compiler import damped, drop_factors, halved, shifted_beside
from snippets.compiler.debugging_bugs_operators import mean_change, precise_sin, scaled, stored_by_column


# --8<-- [start:healthy]
class Block(torch.nn.Module):
    """Products, a norm, dropout: nothing is wrong with it."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(F.gelu(self.up(F.layer_norm(x, x.shape[-1:]))), 0.5)
        return x + self.down(hidden)


# --8<-- [end:healthy]


# --8<-- [start:memory]
def padded(x: Tensor) -> Tensor:
    """Each row with room for four numbers more; nobody writes the room."""
    wide = torch.empty(x.shape[0], x.shape[1] + 4)
    wide[:, :-4] = x
    return wide.tanh()


# --8<-- [end:memory]


@dataclass(frozen=True)
class Bug:
    """A function with a bug in it, and options of Inductor under which it shows."""

    function: Callable
    options: dict[str, Any] = field(default_factory=dict)


BUGS = {
    "shape": Bug(mean_change),
    "mutation": Bug(scaled),
    "decomposition": Bug(halved),
    "dtype": Bug(precise_sin),
    "stride": Bug(stored_by_column),
    "pass": Bug(damped, {"post_grad_custom_post_pass": drop_factors}),
    "lowering": Bug(shifted_beside),
    "memory": Bug(padded),
}


def make_x() -> Tensor:
    return torch.linspace(-1, 1, 32).view(8, 4)


def main() -> None:
    """Bisect each, and look inside the stage where torch can."""
    print("==== healthy")
    torch.manual_seed(0)
    print(bisect(Block(), torch.randn(8, 16, requires_grad=True)))
    for name, bug in BUGS.items():
        print(f"==== {name}")
        with torch._inductor.config.patch(bug.options):
            print(bisect(bug.function, make_x()))
            if name in ("decomposition", "pass"):
                print("inside:", inside(bug.function, make_x()))


if __name__ == "__main__":
    main()
