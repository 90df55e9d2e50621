"""In which dtype a compiled backward multiplies, with autocast inside the function or around the call."""

from collections.abc import Callable

import torch
import torch._functorch.config
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from snippets.compiler.training_checkpointing import aten


# --8<-- [start:autocast]
def fragile(x: Tensor, weight: Tensor) -> Tensor:
    """Its author wants this product in fp32, whatever stands around it."""
    with torch.autocast(x.device.type, enabled=False):
        return x @ weight


def inside(x: Tensor, weight: Tensor) -> Tensor:
    """Autocast belongs to the compiled function. Called without autocast around it."""
    with torch.autocast(x.device.type, torch.bfloat16):
        return fragile(x, weight)


def outside(x: Tensor, weight: Tensor) -> Tensor:
    """Autocast is on around the call, as the caller left it. (A function of its own: it shall share nothing.)"""
    return fragile(x, weight)


def dtype_of_backward(function: Callable[..., Tensor], around: bool, **config: str) -> str:
    """In which dtype the compiled backward multiplies, with autocast on around the call or not."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, example_inputs: list) -> Callable:
        graphs.append(graph)
        return make_boxed_func(graph)

    x, weight = (torch.ones(4, 4, requires_grad=True) for _ in range(2))
    torch.compiler.reset()
    with torch._functorch.config.patch(**config):
        with torch.autocast("cpu", torch.bfloat16, enabled=around):
            y = torch.compile(function, backend=aot_autograd(fw_compiler=keep))(x, weight)
        y.sum().backward()
    (dtype,) = {str(node.meta["val"].dtype) for node in graphs[-1].graph.nodes if node.target is aten.mm.default}
    return dtype


# --8<-- [end:autocast]
