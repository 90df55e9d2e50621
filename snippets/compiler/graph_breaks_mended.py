"""Twelve graph breaks, each before and after its mend, with what the log says of it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from snippets.compiler.graph_breaks import find
from snippets.compiler.graph_breaks_modules import (
    Hooked,
    MutationAfter,
    MutationBefore,
    autograd_after,
    autograd_before,
    hook_after,
    hook_before,
)
from snippets.compiler.graph_breaks_python import (
    context_after,
    context_before,
    generator_after,
    generator_before,
    library_after,
    library_before,
    logging_after,
    logging_before,
)
from snippets.compiler.graph_breaks_values import (
    branch_after,
    branch_before,
    item_after,
    item_before,
    numpy_after,
    numpy_before,
    try_after,
    try_before,
)


# --8<-- [start:third-party]
def ranks(scores: Tensor) -> Tensor:
    """Stands for a library's function, in Python or C, that leaves tensors for numbers."""
    values = scores.tolist()
    order = sorted(range(len(values)), key=values.__getitem__)
    return torch.tensor(order, device=scores.device).argsort()


def third_party_before(x: Tensor) -> Tensor:
    return x.sin() * ranks(x[:, 0])[:, None]


@torch.library.custom_op("ridgepoint::ranks", mutates_args=())
def ranks_op(scores: Tensor) -> Tensor:
    return ranks(scores)


@ranks_op.register_fake
def _(scores: Tensor) -> Tensor:  # what the result looks like, without computing it
    return scores.new_empty(scores.shape, dtype=torch.int64)


def third_party_after(x: Tensor) -> Tensor:
    return x.sin() * ranks_op(x[:, 0])[:, None]


# --8<-- [end:third-party]


@dataclass(frozen=True)
class Break:
    """One kind: the function before and after, and what makes the inputs of each."""

    before: Callable
    after: Callable
    inputs: Callable[[], tuple]
    inputs_after: Callable[[], tuple] | None = None

    def arguments_after(self) -> tuple:
        return (self.inputs_after or self.inputs)()


def make_x() -> Tensor:
    return torch.linspace(-1, 2, 32).view(4, 8)


def modules() -> tuple[nn.Module, ...]:
    """The two pairs of modules, each pair with the same weights."""
    pairs = (MutationBefore(), MutationAfter()), (Hooked(hook_before), Hooked(hook_after))
    for before, after in pairs:
        after.load_state_dict(before.state_dict())
    return *pairs[0], *pairs[1]


def twelve() -> dict[str, Break]:
    """All kinds, in the order of the page."""
    mutating, frozen, hooked, hooked_after = modules()
    one = lambda: (make_x(),)  # noqa: E731
    leaf = lambda: (make_x().requires_grad_(),)  # noqa: E731
    factor = torch.tensor(1.5)
    return {
        "branch": Break(branch_before, branch_after, one),
        "item": Break(item_before, item_after, one),
        "logging": Break(logging_before, logging_after, one),
        "library": Break(library_before, library_after, one),
        "mutation": Break(mutating, frozen, one),
        "context": Break(context_before, context_after, one),
        "generator": Break(
            generator_before, generator_after, lambda: (make_x(), (f for f in [factor])), lambda: (make_x(), factor)
        ),
        "autograd": Break(autograd_before, autograd_after, leaf),
        "hooks": Break(hooked, hooked_after, one),
        "numpy": Break(numpy_before, numpy_after, one),
        "try": Break(try_before, try_after, one),
        "third-party": Break(third_party_before, third_party_after, one),
    }


def main() -> None:
    """Print what the log says of each kind before."""
    for name, kind in twelve().items():
        print(f"==== {name}")
        print(find(kind.before, *kind.inputs()).log[0])


if __name__ == "__main__":
    main()
