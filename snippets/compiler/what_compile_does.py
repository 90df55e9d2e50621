"""What does torch.compile do to a function? Each stage's product, printed.

Run `python -m snippets.compiler.what_compile_does`: the first compilation on a machine takes a while.
"""

import re
import textwrap
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.utils import run_and_get_code
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from snippets.validation.timing import seconds_per_call, synchronize


# --8<-- [start:function]
def unit_rows(x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
    """The tail of an embedding model: bias, squared ReLU, skip connection, rows of length one.

    `x` and `y` have shape (rows, columns), `bias` (columns,); the result has the shape and dtype of `x`.
    """
    hidden = x + F.relu(y + bias).square()
    return hidden / hidden.norm(dim=-1, keepdim=True)


# --8<-- [end:function]


# --8<-- [start:traffic]
class Traffic(TorchDispatchMode):
    """Notes each operation that reaches PyTorch's kernels, with the bytes that it reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[str, int, int]] = []  # name, bytes read, bytes written
        self.calls: list[Callable] = []  # to time each by itself

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        self.operations.append((str(operation), nbytes(args), nbytes(result)))
        self.calls.append(partial(operation, *args, **(kwargs or {})))
        return result


def nbytes(tree: object) -> int:
    """Bytes of all tensors in a tree of arguments or results."""
    return sum(leaf.nbytes for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


# --8<-- [end:traffic]


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


# --8<-- [start:inductor]
def generated_kernels(function: Callable, *inputs: Tensor) -> list[str]:
    """The kernels that Inductor writes: Triton for a GPU, C++ for a CPU."""
    _, code = run_and_get_code(torch.compile(function), *inputs)
    kernels = re.findall(r"'''(.*?)'''", "".join(code), re.DOTALL)
    return [kernel[max(kernel.find("@triton.jit"), 0) :].strip() for kernel in kernels]  # without the launch settings


# --8<-- [end:inductor]


def first_and_later(function: Callable, *inputs: Tensor) -> tuple[float, float]:
    """Seconds of a compiled function's first call, and of a later one."""
    torch.compiler.reset()
    compiled, device = torch.compile(function), inputs[0].device
    began = time.perf_counter()
    compiled(*inputs)
    synchronize(device)
    return time.perf_counter() - began, seconds_per_call(lambda: compiled(*inputs), device)


def readable(graph: torch.fx.GraphModule) -> str:
    """A graph as Python: each operation with its result's type, under the line of source that it comes from."""
    text = graph.print_readable(print_output=False).partition("\n")[2]
    text = re.sub(r"# File: .*, code: ", "# ", text)
    return textwrap.dedent(re.sub(r";  \w+ = .*None$", "", text, flags=re.MULTILINE)).strip()


def main() -> None:
    """Follow one function through the compiler."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows, columns, dtype = (65536, 1024, torch.bfloat16) if device.type == "cuda" else (4096, 1024, torch.float32)
    x, y = (torch.randn(rows, columns, device=device).to(dtype) for _ in range(2))
    bias = torch.randn(columns, device=device).to(dtype)

    print("==== eager")
    with Traffic() as traffic:
        result = unit_rows(x, y, bias)
    once = ("every tensor once", nbytes((x, y, bias)), nbytes(result))
    for name, read, written in [*traffic.operations, once]:
        print(f"{name:<32} reads {read / 1e6:8.3f} MB   writes {written / 1e6:8.3f} MB")

    print("==== eager, timed")
    for (name, read, written), call in zip(traffic.operations, traffic.calls, strict=True):
        seconds = seconds_per_call(call, device)
        print(f"{name:<32} {seconds * 1e6:8.1f} us {(read + written) / seconds / 1e9:8.1f} GB/s")

    print("==== Dynamo")
    print(readable(dynamo_graph(unit_rows, x, y, bias)))

    print("==== guards")
    calls = [(x[:few], y[:few], bias) for few in (8, 8, 16, 24)] + [(x[:8].double(), y[:8].double(), bias.double())]
    for (part, _, _), count in zip(calls, captures(unit_rows, calls), strict=True):
        print(f"{tuple(part.shape)!s:<11} {part.dtype!s:<14} graphs so far: {count}")

    for direction, graph in zip(("forward", "backward"), autograd_graphs(unit_rows, x, y, bias), strict=True):
        print(f"==== AOTAutograd, {direction}")
        print(readable(graph))

    print("==== Inductor")
    print("\n\n".join(generated_kernels(unit_rows, x, y, bias)))

    print("==== Inductor, wide rows")
    wide = x.view(-1, 16 * columns), y.view(-1, 16 * columns), bias.repeat(16)
    print("\n\n".join(generated_kernels(unit_rows, *wide)))

    print("==== time")
    first, later = first_and_later(unit_rows, x, y, bias)
    eager = seconds_per_call(lambda: unit_rows(x, y, bias), device)
    print(f"first call {first:.3f} s, later {later * 1e6:.1f} us; eager {eager * 1e6:.1f} us")


if __name__ == "__main__":
    main()
