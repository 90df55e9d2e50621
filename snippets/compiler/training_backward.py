"""Compiled autograd: one graph of a backward that graph breaks had cut."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch._dynamo.compiled_autograd
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from snippets.compiler.training_kept import work


# --8<-- [start:compiled-autograd]
def in_three(x: Tensor) -> Tensor:
    """Two graph breaks, so three graphs forward, and as many backward."""
    x = x.sin().cos()
    torch._dynamo.graph_break()
    x = x.sin().cos()
    torch._dynamo.graph_break()
    return x.sin().cos()


def backward_graphs(compiled_autograd: bool) -> list[int]:
    """Operations in each graph that runs during a backward."""
    ran: list[int] = []

    def counted(graph: torch.fx.GraphModule, example_inputs: list) -> Callable:
        def run(*inputs: object) -> object:
            ran.append(sum(work(node) is not None for node in graph.graph.nodes))
            return graph(*inputs)

        return make_boxed_func(run)

    backend = aot_autograd(fw_compiler=counted)
    torch.compiler.reset()
    x = torch.ones(4, requires_grad=True)
    loss = torch.compile(in_three, backend=backend)(x).sum()
    ran.clear()
    engine = torch._dynamo.compiled_autograd._enable if compiled_autograd else nullcontext
    with engine(torch.compile(backend=backend)):
        loss.backward()
    return ran


# --8<-- [end:compiled-autograd]
