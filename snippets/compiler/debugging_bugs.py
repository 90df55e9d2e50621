"""A module with nothing wrong in it, eight functions with a bug planted in each, and what `bisect` says of them.

Run `python -m snippets.compiler.debugging_bugs`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.decomposition import register_decomposition
from torch._inductor.lowering import lowerings, register_lowering

from snippets.compiler.debugging import bisect, inside

aten = torch.ops.aten


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


# --8<-- [start:shape]
@torch.library.custom_op("planted::changes", mutates_args=())
def changes(x: Tensor) -> Tensor:
    """The differences of neighbouring rows: one row less than x."""
    return x[1:] - x[:-1]


@changes.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)  # wrong: as many rows as x


def mean_change(x: Tensor) -> Tensor:
    rows = changes(x)
    return rows.sum(0) / rows.shape[0]


# --8<-- [end:shape]


# --8<-- [start:mutation]
@torch.library.custom_op("planted::scale_", mutates_args=())  # wrong: mutates_args=("x",)
def scale_(x: Tensor, factor: float) -> None:
    x.mul_(factor)


@scale_.register_fake
def _(x: Tensor, factor: float) -> None:
    return None


def scaled(x: Tensor) -> Tensor:
    y = x.exp()
    scale_(y, 0.5)
    return y + 1


# --8<-- [end:mutation]


# --8<-- [start:decomposition]
@torch.library.custom_op("planted::halve", mutates_args=())
def halve(x: Tensor) -> Tensor:
    return x / 2


@halve.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@register_decomposition([torch.ops.planted.halve.default])
def _(x: Tensor) -> Tensor:
    return x * 0.25  # wrong: 0.5


def halved(x: Tensor) -> Tensor:
    return halve(x.exp()).sin()


# --8<-- [end:decomposition]


# --8<-- [start:dtype]
@torch.library.custom_op("planted::precise", mutates_args=())
def precise(x: Tensor) -> Tensor:
    return x.double().exp()


@precise.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)  # wrong: dtype=torch.float64


def precise_sin(x: Tensor) -> Tensor:
    return precise(x).sin()


# --8<-- [end:dtype]


# --8<-- [start:stride]
@torch.library.custom_op("planted::by_column", mutates_args=())
def by_column(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


@by_column.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)  # wrong: strides of a transposed tensor


def stored_by_column(x: Tensor) -> Tensor:
    return by_column(x).sin()


# --8<-- [end:stride]


# --8<-- [start:pass]
def drop_factors(graph: torch.fx.Graph) -> None:
    """A pass that means to drop products with 1, and drops those with any number."""
    for node in graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        if isinstance(node.args[1], float):  # wrong: == 1.0
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def damped(x: Tensor) -> Tensor:
    return (x.exp() * 0.5).sin()


# --8<-- [end:pass]


# --8<-- [start:lowering]
@torch.library.custom_op("planted::shifted", mutates_args=())
def shifted(x: Tensor) -> Tensor:
    return x + 1


@shifted.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@register_lowering(torch.ops.planted.shifted.default)
def _(x: Any) -> Any:
    return lowerings[aten.add_.Tensor](x, 1)  # wrong: aten.add.Tensor, which leaves x alone


def shifted_beside(x: Tensor) -> Tensor:
    return shifted(x) * x


# --8<-- [end:lowering]


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
