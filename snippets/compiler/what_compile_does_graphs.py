"""The graphs of Dynamo and of AOTAutograd, and how often Dynamo captures."""

import re
import textwrap
from collections.abc import Callable

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table


# --8<-- [start:dynamo]
def dynamo_graph(function: Callable, *inputs: Tensor) -> torch.fx.GraphModule:
    """The graph that Dynamo captures. A backend is a function: it gets the graph and returns what to run."""
    graphs = []

    def keep(graph: torch.fx.GraphModule, example_inputs: list[Tensor]) -> Callable:
        graphs.append(graph)
        return graph  # unchanged: runs operation by operation, as eager does

    torch.compiler.reset()
    torch.compile(function, backend=keep, fullgraph=True)(*inputs)
    return graphs[0]


# --8<-- [end:dynamo]
# --8<-- [start:guards]
def captures(function: Callable, calls: list[tuple[Tensor, ...]]) -> list[int]:
    """How many graphs Dynamo has captured after each of several calls."""
    graphs, counts = [], []
    torch.compiler.reset()
    compiled = torch.compile(function, backend=lambda graph, inputs: graphs.append(graph) or graph)
    for inputs in calls:
        compiled(*inputs)
        counts.append(len(graphs))
    return counts


# --8<-- [end:guards]
# --8<-- [start:autograd]
def autograd_graphs(function: Callable, *inputs: Tensor) -> list[torch.fx.GraphModule]:
    """The forward and the backward graph that AOTAutograd makes, in the operations that Inductor asks for."""
    graphs = []

    def keep(graph: torch.fx.GraphModule, example_inputs: list[Tensor]) -> Callable:
        graphs.append(graph)
        return make_boxed_func(graph)

    backend = aot_autograd(
        fw_compiler=keep,
        decompositions=select_decomp_table(),
        partition_fn=min_cut_rematerialization_partition,  # what to keep for backward, what to compute again
    )
    torch.compiler.reset()
    torch.compile(function, backend=backend)(*(tensor.detach().requires_grad_() for tensor in inputs)).sum().backward()
    return graphs


# --8<-- [end:autograd]
def readable(graph: torch.fx.GraphModule) -> str:
    """A graph as Python: each operation with its result's type, under the line of source that it comes from."""
    text = graph.print_readable(print_output=False).partition("\n")[2]
    text = re.sub(r"# File: .*, code: ", "# ", text)
    return textwrap.dedent(re.sub(r";  \w+ = .*None$", "", text, flags=re.MULTILINE)).strip()
