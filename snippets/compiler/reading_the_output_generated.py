"""The Triton that Inductor writes for a GPU that is not here."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from unittest import mock

import torch
import torch._inductor.config
import torch._inductor.debug
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from snippets.compiler.reading_the_output_candidates import pretended_gpu


# --8<-- [start:generated]
@dataclass(frozen=True)
class Generated:
    """What Inductor writes for one graph.

    Attributes:
        direction: "forward" or "backward".
        code: the Python module, as TORCH_LOGS=output_code prints it.
        lines: for each launch, "kernel:number" as in the module's comments, the lines of source that it computes.
    """

    direction: str
    code: str
    lines: dict[str, list[str]]

    @property
    def kernels(self) -> dict[str, str]:
        """The generated kernels by name, each as a file of its own."""
        return dict(re.findall(r"^(\w+) = async_compile\.triton\('\w+', '''\n(.*?)'''", self.code, re.M | re.S))

    @property
    def calls(self) -> list[str]:
        """The lines that launch something, in order."""
        return re.findall(r"^ +((?:\w+\.run|extern_kernels\.\w+)\(.*\))$", self.code, re.M)


def generate(
    function: Callable, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, gradients: bool = True
) -> list[Generated]:
    """What Inductor writes for an H200: for the forward and, with gradients, for the backward of all inputs."""
    found: list[Generated] = []
    codegen = GraphLowering.codegen

    def watched(lowered: GraphLowering) -> None:
        code = codegen(lowered)[0]
        information = torch._inductor.debug.create_kernel_information_json()
        lines = {name: sorted({line_of(trace) for trace in told["stack_traces"]}) for name, told in information.items()}
        found.append(Generated("backward" if lowered.is_backward else "forward", getattr(code, "value", code), lines))
        raise StopIteration("written: there is no GPU to run it")

    graphs = traced(function, shapes, dtype, gradients)
    with pretended_gpu(), mock.patch.object(GraphLowering, "codegen", watched), torch.no_grad():
        for index, graph in enumerate(graphs):
            mode = FakeTensorMode()
            values = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
            with mode:
                moved = [
                    torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
                    for value in values
                ]
            FakeTensorProp(graph, mode=mode).propagate_dont_convert_inputs(*moved)
            try:
                with torch._inductor.debug.reset_provenance_globals():
                    compile_fx_inner(graph, moved, is_backward=index > 0)
            except Exception:
                if len(found) <= index:  # something else went wrong
                    raise
    return found


def traced(
    function: Callable, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, gradients: bool
) -> list[torch.fx.GraphModule]:
    """The graphs that Inductor would get, traced with tensors that have a shape and a type, and no data."""
    graphs = []

    def keep(graph: torch.fx.GraphModule, example_inputs: list[Tensor]) -> Callable:
        graphs.append(graph)
        return make_boxed_func(graph)

    backend = aot_autograd(
        fw_compiler=keep, decompositions=select_decomp_table(), partition_fn=min_cut_rematerialization_partition
    )
    torch.compiler.reset()
    with FakeTensorMode():
        inputs = [torch.empty(shape, dtype=dtype, requires_grad=gradients) for shape in shapes]
        result = torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*inputs)
        if gradients:
            result.sum().backward()
    return graphs


def line_of(trace: str) -> str:
    """The line of source that a stack trace ends in."""
    return [line.strip() for line in trace.splitlines() if line.strip(" ^~") and 'File "' not in line][-1]


# --8<-- [end:generated]
