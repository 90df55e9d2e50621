"""What would Inductor write for a GPU that is not here? A function's Triton kernels, on any machine.

    python -m snippets.compiler.reading_the_output_triton

The function is traced with tensors that have no data, its graphs are moved to a device that exists only as a list of
properties, and Inductor generates code for them. Nothing is compiled and nothing runs. None of this is a public API.
"""

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from unittest import mock

import torch
import torch._inductor.config
import torch._inductor.debug
import torch.nn.functional as F
import triton
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.device_interface import CudaInterface
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime import triton_heuristics
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from triton.backends.compiler import GPUTarget

from snippets.compiler.inductor_code_standalone import standalone


# --8<-- [start:function]
def block(x: Tensor, up: Tensor, scale: Tensor, down: Tensor) -> Tensor:
    """Two products, with a gate between them and a softmax behind."""
    hidden = F.silu(x @ up) * scale
    return F.softmax(hidden @ down, dim=-1)


SHAPES = (65536, 1024), (1024, 4096), (4096,), (4096, 1024)
# --8<-- [end:function]

# An H200, as PyTorch describes it.
H200 = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, warp_size=32, gcnArchName="",
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
    shared_memory_per_block=49152, shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472,
    total_memory=150_000_000_000, L2_cache_size=62_914_560,
)  # fmt: skip


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


@contextlib.contextmanager
def pretended_gpu() -> Iterator[None]:
    """Let Inductor believe in an H200: all that it asks a GPU while it generates code."""
    driver = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_active_torch_device=lambda: torch.device("cuda", 0),
        get_current_device=lambda: 0,
    )
    answers = {
        "get_device_properties": lambda device=None: H200,
        "get_compute_capability": lambda device=None: 90,
        "is_bf16_supported": lambda including_emulation=False: True,
    }
    with contextlib.ExitStack() as stack:
        patched = stack.enter_context
        for name, answer in answers.items():
            patched(mock.patch.object(CudaInterface, name, staticmethod(answer)))
        for place in (CudaInterface.Worker, torch.cuda):
            patched(mock.patch.object(place, "get_device_properties", staticmethod(lambda device=None: H200)))
        patched(mock.patch.object(torch.cuda, "get_device_capability", lambda device=None: (9, 0)))
        patched(mock.patch.object(torch.cuda, "current_device", lambda: 0))
        patched(mock.patch.object(triton.runtime.driver, "_active", driver, create=True))
        patched(mock.patch("torch._inductor.scheduler.has_triton", lambda *_: True, create=True))
        patched(mock.patch("torch.utils._triton.has_triton", lambda *_: True))
        options = {"fx_graph_cache": False, "compile_threads": 1, "trace.provenance_tracking_level": 1}
        patched(torch._inductor.config.patch(options))
        yield


# --8<-- [start:candidates]
def candidates(source: str) -> tuple[str, list[tuple[dict[str, int], int]]]:
    """How a generated kernel may be launched: the rule for its grid, and the configurations that Inductor would try."""
    found: list[tuple[str, list]] = []

    def note(*args: object, **keywords: object) -> Callable:
        configurations = args[1] if len(args) > 1 else keywords["configs"]
        found.append((keywords["inductor_meta"]["grid_type"], list(configurations)))
        return lambda function: function

    available = mock.patch.object(torch.cuda, "is_available", lambda: True)  # on which some rules depend
    with pretended_gpu(), available, mock.patch.object(triton_heuristics, "cached_autotune", note):
        decorators = source[: source.index("@triton.jit")].replace("triton_helpers.set_driver_to_gpu()", "")
        exec(decorators + "def kernel(): ...\n", {"__file__": "kernel.py"})
    ((rule, configurations),) = found
    return rule, [(dict(each.kwargs), each.num_warps) for each in configurations]


# --8<-- [end:candidates]


def main() -> None:
    """Print the Triton of both directions, piece by piece."""
    graphs = generate(block, SHAPES, torch.bfloat16)
    kernels = {name: source for graph in graphs for name, source in graph.kernels.items()}
    for graph in graphs:
        print(f"==== {graph.direction}, calls")
        print("\n".join(graph.calls))
    print("==== lines")
    for graph in graphs:
        print(graph.direction)
        for name, lines in graph.lines.items():
            print(f"    {name:<54} {' | '.join(lines)}")
    for name, source in kernels.items():
        print(f"==== {name}")
        print(body(source))
    print("==== settings")
    print(settings(kernels["triton_poi_fused_mul_silu_0"]))
    print("==== candidates")
    for name, source in kernels.items():
        rule, configurations = candidates(source)
        numel = int(re.search(r"xnumel = (\d+)", source)[1])
        print(f"{name}: {rule}, xnumel {numel}")
        for constants, warps in configurations:
            blocks = ", ".join(f"{constant} {value}" for constant, value in constants.items())
            print(f"    {blocks:<30} num_warps {warps:2}   grid {math.ceil(numel / constants['XBLOCK'])}")


def body(source: str) -> str:
    """A kernel alone, without the settings in front of it."""
    text = standalone({"kernel": source})
    return text[text.index("@triton.jit") :].strip()


def settings(source: str) -> str:
    """The decorator of a kernel, without what describes the GPU."""
    text = source[source.index("@triton_heuristics") : source.index("@triton.jit")].strip()
    return re.sub(r"'backend_hash': '\w+', ", "", re.sub(r"DeviceProperties\(.*?\)", "…", text))


if __name__ == "__main__":
    main()
