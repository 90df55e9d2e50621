"""Inductor's plan: the kernels that it would launch, and the bytes that each moves. A custom_op is one by itself."""

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch._functorch.config
import torch._inductor.config
from torch import Tensor
from torch._inductor.graph import GraphLowering


# --8<-- [start:plan]
class Kernel(NamedTuple):
    """One entry of Inductor's plan: a kernel to write, or a call to leave to a library.

    Attributes:
        makes: the operation behind each buffer that is computed in it; some of them never reach memory.
        written: by Inductor, and not a library's.
        bytes: of the buffers that it reads or writes, each once.
    """

    makes: tuple[str, ...]
    written: bool
    bytes: int


def plan(function: Callable, *inputs: Tensor, **options: Any) -> list[Kernel]:
    """What Inductor would launch for a call of the function: its scheduler's list, after fusion."""
    kernels: list[Kernel] = []
    codegen = GraphLowering.codegen

    def watched(lowered: GraphLowering) -> None:
        codegen(lowered)
        kernels[:] = [
            Kernel(
                tuple(operation_of(part.node) for part in node.get_nodes() if part.node is not None),
                written=not node.is_extern(),
                bytes=node.get_read_write_buffers_sizes(),
            )
            for node in lowered.scheduler.nodes
        ]
        raise StopIteration("planned: there is no need to build the kernels")

    torch.compiler.reset()
    try:
        with (
            mock.patch.object(GraphLowering, "codegen", watched),
            torch._inductor.config.patch(fx_graph_cache=False, **options),
            torch._functorch.config.patch(enable_autograd_cache=False),
        ):
            torch.compile(function, fullgraph=True, dynamic=False)(*inputs)
    except Exception:
        if not kernels:  # something else went wrong
            raise
    return [kernel for kernel in kernels if kernel.bytes]  # without entries that only name a result


def operation_of(buffer: Any) -> str:
    """The operation of the graph that a buffer is the result of."""
    origin = buffer.get_origin_node() or next(iter(buffer.get_origins()))
    return str(origin.target).removeprefix("aten.").rpartition(".")[0]


# --8<-- [end:plan]
