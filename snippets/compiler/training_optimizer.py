"""How many graphs a compiled optimizer needs while a schedule changes its learning rate, or its betas."""

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend


# --8<-- [start:rates]
def graphs_of_updates(rates: Iterable[float], as_tensor: bool) -> list[int]:
    """How many graphs a compiled optimizer has needed after each of several learning rates."""
    weight = nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.AdamW([weight], lr=torch.tensor(0.1) if as_tensor else 0.1)
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, example_inputs: list) -> Callable:
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    update = torch.compile(optimizer.step, backend=keep)
    counts = []
    for rate in rates:
        optimizer.param_groups[0]["lr"] = torch.tensor(rate) if as_tensor else rate
        weight.grad = torch.ones(8)
        update()
        counts.append(len(graphs))
    return counts


# --8<-- [end:rates]
# --8<-- [start:cycle]
def graphs_of_a_cycle(as_tensor: bool, cycle_momentum: bool) -> list[int]:
    """The same under OneCycleLR, which by default changes Adam's betas, too. AOTAutograd makes constants of these."""
    weight = nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.AdamW([weight], lr=torch.tensor(0.1) if as_tensor else 0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20, cycle_momentum=cycle_momentum)
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, example_inputs: list) -> Callable:
        graphs.append(graph)
        return lookup_backend("aot_eager")(graph, example_inputs)

    torch.compiler.reset()
    update = torch.compile(optimizer.step, backend=keep)
    counts = []
    for _ in range(12):
        weight.grad = torch.ones(8)
        update()
        schedule.step()
        counts.append(len(graphs))
    return counts


# --8<-- [end:cycle]
