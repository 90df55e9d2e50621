"""What did Inductor make of a function? Its graph, its kernels in full, their launches and bytes.

    python -m snippets.compiler.inductor_code

shows RMSNorm, forward and backward, and the function of the page on what torch.compile does. The kernels are Triton on
a GPU and C++ on a CPU. All is read off Inductor's objects, seen with torch 2.11 to 2.15; none of them is a public API.
"""

import ast
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from unittest import mock

import torch
import torch._functorch.config
import torch._inductor.config
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.graph import GraphLowering
from torch.utils._pytree import tree_leaves

from snippets.compiler.inductor_code_chosen import Refused
from snippets.compiler.inductor_code_launches import Made, watch
from snippets.compiler.inductor_code_standalone import standalone
from snippets.compiler.what_compile_does import unit_rows
from snippets.compiler.what_compile_does_graphs import readable


# --8<-- [start:made]
def made(function: Callable, *inputs: Tensor) -> list[Made]:
    """What Inductor makes of a function at these inputs: forward and, if one of them requires a gradient, backward.

    Raises:
        Refused: Inductor got no graph, or its parts are not where they were.
    """
    found: list[Made] = []
    problems: list[Refused] = []  # raised in a compilation, they would be dressed up
    compile_to_module = GraphLowering.compile_to_module

    def watched(lowered: GraphLowering) -> ModuleType:
        module = compile_to_module(lowered)
        try:
            found.append(look_at(lowered, module))
        except Refused as problem:
            problems.append(problem)
        return module

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=False)
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    with (
        mock.patch.object(GraphLowering, "compile_to_module", watched),
        torch._inductor.config.patch(fx_graph_cache=False, compile_threads=1),  # compiled anew, and in this process
        torch._functorch.config.patch(enable_autograd_cache=False, force_non_lazy_backward_lowering=True),
    ):
        for _ in range(2):  # the first call also tries configurations
            outputs = [leaf for leaf in tree_leaves(compiled(*inputs)) if isinstance(leaf, Tensor)]
            if wanted:
                torch.autograd.grad(outputs, wanted, [torch.randn_like(output) for output in outputs])
    if problems:
        raise problems[0]
    if not found:
        raise Refused("Inductor got no graph: the function computes nothing")
    return found


def look_at(lowered: GraphLowering, module: ModuleType) -> Made:
    """Read off a graph what became of it, and have the generated module note what it calls."""
    try:
        language, kernels = kernels_of(ast.parse(Path(module.__file__).read_text()))
        counted = sum(node.get_read_write_buffers_sizes() for node in lowered.scheduler.nodes)
        direction = "backward" if lowered.is_backward else "forward"
        result = Made(direction, readable(lowered.orig_gm), language, kernels, counted)
        watch(module, result)
    except (AttributeError, KeyError, OSError, ValueError) as error:
        raise Refused(f"torch {torch.__version__} keeps this elsewhere: {type(error).__name__}: {error}") from error
    return result


def kernels_of(module: ast.Module) -> tuple[str, dict[str, str]]:
    """The language, and the sources by name, of a module's NAME = async_compile.LANGUAGE(..., SOURCE, ...)."""
    language, kernels = "", {}
    for statement in module.body:
        match statement:
            case ast.Assign([ast.Name(name)], ast.Call(ast.Attribute(ast.Name("async_compile"), language), arguments)):
                values = [argument.value for argument in arguments if isinstance(argument, ast.Constant)]
                kernels[name] = max(filter(lambda value: isinstance(value, str), values), key=len).strip() + "\n"
    return language, kernels


# --8<-- [end:made]


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm of rows, as the page on ours measures it."""
    return F.rms_norm(x, x.shape[-1:], weight, 1e-6)


def show(name: str, result: Made, shape: str, dtype: torch.dtype) -> None:
    """Print the sections of one graph."""
    title = f"==== {name} {result.direction}"
    print(f"{title}, graph")
    print(result.graph)
    print(f"{title}, kernels")
    if result.language == "triton":
        print(standalone(result.kernels), end="")
    else:
        print("\n".join(f"// {kernel}\n{source}" for kernel, source in result.kernels.items()), end="")
    print(f"{title}, launches")
    for launch in result.launches:
        print(json.dumps(asdict(launch)))
    print(f"{title}, counts")
    counts = {
        "shape": shape,
        "dtype": str(dtype).removeprefix("torch."),
        "kernels": len(result.kernels),
        "launches": len(result.launches),
        "bytes": result.bytes,
        "passed": sum(launch.bytes for launch in result.launches),
    }
    print(json.dumps(counts))


def main() -> None:
    """Show both functions, at a published shape on a GPU."""
    gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float32)

    rows, columns = (32768, 4096) if gpu else (256, 1024)
    x, weight = (torch.randn(shape, device=device).to(dtype) for shape in ((rows, columns), (columns,)))
    (forward,) = made(rms_norm, x, weight)
    _, backward = made(rms_norm, x.requires_grad_(), weight.requires_grad_())
    for result in (forward, backward):
        show("rms_norm", result, f"{rows}x{columns}", dtype)

    rows, columns = (65536, 1024) if gpu else (256, 1024)
    x, y, bias = (torch.randn(shape, device=device).to(dtype) for shape in ((rows, columns), (rows, columns), columns))
    (forward,) = made(unit_rows, x, y, bias)
    show("unit_rows", forward, f"{rows}x{columns}", dtype)


if __name__ == "__main__":
    main()
