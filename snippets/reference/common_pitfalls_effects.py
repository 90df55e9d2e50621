"""Pitfalls of what a function does beside computing: hooks, prints and seeds."""

from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO

import torch
from torch import Tensor, nn

from snippets.reference.common_pitfalls_breaks import compiled, make_x


def printed(function: Callable) -> str:
    """What a compiled function prints when prints may wait for the end of the graph."""
    with torch._dynamo.config.patch(reorderable_logging_functions={print}), redirect_stdout(StringIO()) as output:
        compiled(function, fullgraph=True)(torch.zeros(2))
    return output.getvalue().strip()


def agree(plain: Callable, fast: Callable) -> str:
    """Whether two functions give the same result from the same seed of NumPy's."""
    import numpy

    results = []
    for function in (plain, fast):
        numpy.random.seed(0)
        results.append(function(make_x()))
    return "the same numbers" if torch.equal(*results) else "other numbers than eager, from the same seed"


# --8<-- [start:late-hook]
def late_hook(forget: bool) -> str:
    calls: list[int] = []
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    fast = compiled(module)
    fast(make_x())
    module[0].register_forward_hook(lambda *_: calls.append(1))
    if forget:
        torch.compiler.reset()  # what was captured without the hook
    fast(make_x())
    return f"the hook ran {'once' if calls else 'never'}"


# --8<-- [end:late-hook]


# --8<-- [start:reordered]
def reordered_before(x: Tensor) -> Tensor:
    total = x + 1
    print("first:", total[0])
    return total.add_(100)


def reordered_after(x: Tensor) -> Tensor:
    total = x + 1
    print("first:", total[0])
    return total + 100


# --8<-- [end:reordered]


# --8<-- [start:seed]
def seed_before(x: Tensor) -> Tensor:
    import numpy

    return x + torch.from_numpy(numpy.random.randn(8)).float()


def seed_after(x: Tensor, noise: Tensor) -> Tensor:
    return x + noise  # compiled(x, draw())


def draw() -> Tensor:
    import numpy

    return torch.from_numpy(numpy.random.randn(8)).float()


# --8<-- [end:seed]
