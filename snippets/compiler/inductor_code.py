"""What did Inductor make of a function? Its graph, its kernels in full, their launches and bytes.

    python -m snippets.compiler.inductor_code

shows RMSNorm, forward and backward, and the function of the page on what torch.compile does. The kernels are Triton on
a GPU and C++ on a CPU. All is read off Inductor's objects, seen with torch 2.11 to 2.15; none of them is a public API.
"""

import ast
import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch._functorch.config
import torch._inductor.config
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.graph import GraphLowering
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from snippets.compiler.what_compile_does import nbytes, readable, unit_rows


class Refused(RuntimeError):
    """There is nothing to show, or this torch keeps it elsewhere; the message says which."""


# --8<-- [start:made]
@dataclass
class Launch:
    """One call that the generated code makes.

    Attributes:
        name: one of its kernels, or an operation of PyTorch's library.
        bytes: of the tensors that it gets and returns, each whole and once; what is written in place, twice.
        binary: of a Triton kernel, what Inductor chose and what became of it.
    """

    name: str
    bytes: int
    binary: dict[str, Any] = field(default_factory=dict)


@dataclass
class Made:
    """What Inductor made of one graph.

    Attributes:
        direction: "forward" or "backward".
        graph: the graph as it is when code is generated from it, after all passes.
        language: "triton", or "cpp_pybinding" and others.
        kernels: the sources by name, as Inductor wrote them.
        bytes: Inductor's own count: each buffer that a fused kernel reads or writes, once.
        launches: what the latest call did, in order.
    """

    direction: str
    graph: str
    language: str
    kernels: dict[str, str]
    bytes: int
    launches: list[Launch] = field(default_factory=list)


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


# --8<-- [start:launches]
def watch(module: ModuleType, result: Made) -> None:
    """Let a generated module note each call in `result.launches`, which holds those of the latest run."""
    for name, source in result.kernels.items():
        vars(module)[name] = Watched(vars(module)[name], name, source, result.launches)
    call, calls = module.call, itertools.count()

    def watched(arguments: list) -> object:
        result.launches.clear()
        if not next(calls):  # when Inductor tries configurations, which is none of the function's work
            return call(arguments)
        with Operations(result.launches):
            return call(arguments)

    module.call = watched


class Watched:
    """A generated kernel that notes its launches. Triton kernels are launched by `run`, C++ ones are called."""

    def __init__(self, kernel: Any, name: str, source: str, launches: list[Launch]) -> None:
        self.kernel, self.name, self.launches = kernel, name, launches
        self.pointers = list(dict.fromkeys(re.findall(r"\b\w+_ptr\d*\b", source)))

    def run(self, *arguments: Any, **keywords: Any) -> object:
        result = self.kernel.run(*arguments, **keywords)
        self.launches.append(Launch(self.name, self.moved(arguments), chosen(self.kernel)))
        return result

    def __call__(self, *arguments: Any) -> object:
        self.launches.append(Launch(self.name, self.moved(arguments)))
        return self.kernel(*arguments)

    def moved(self, arguments: tuple) -> int:
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        in_place = [tensor for name, tensor in zip(self.pointers, tensors, strict=False) if name.startswith("in_out")]
        return nbytes(tensors) + nbytes(in_place)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)


class Operations(TorchDispatchMode):
    """Notes the operations that generated code leaves to PyTorch, without views and allocations."""

    def __init__(self, launches: list[Launch]) -> None:
        super().__init__()
        self.launches = launches

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        aliases = [returned.alias_info for returned in operation._schema.returns]
        view = any(alias is not None and not alias.is_write for alias in aliases)
        if not view and not operation._schema.name.startswith("aten::empty"):
            self.launches.append(Launch(str(operation), nbytes(args) + nbytes(result)))
        return result


def chosen(kernel: Any) -> dict[str, Any]:
    """How a Triton kernel is launched: Inductor tries its configurations, if there are several, in the first call.

    Returns:
        signature: an entry for each parameter, as snippets.validation.compiled_code.source_of takes them;
        constants: the constexprs among them by name, such as XBLOCK;
        options: num_warps and what else Triton's compiler got;
        tried: the number of configurations;
        registers, spilled, shared: of the binary, for a thread, in bytes a thread, in bytes.
    """
    try:
        (launcher,) = kernel.launchers  # those that lost are gone
        meta = kernel._create_compile_meta(launcher.config)
        options = kernel._create_compile_options(launcher.config, meta)
        entries = signature(kernel.fn, meta)
        return {
            "signature": entries,
            "constants": {name: meta["constants"][name] for name in meta["signature"] if name in meta["constants"]},
            "options": {name: value for name, value in options.items() if isinstance(value, (bool, int, float, str))},
            "tried": max(1, len(kernel.compile_results)),
            "registers": launcher.n_regs,
            "spilled": launcher.n_spills and 4 * launcher.n_spills,  # counted in words
            "shared": launcher.shared,
        }
    except (AttributeError, KeyError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise Refused(f"torch {torch.__version__} does not tell how it launches a kernel: {problem}") from error


def signature(function: Any, meta: Mapping[str, Any]) -> list[str]:
    """The types of a Triton kernel's arguments, with :16 where 16 divides the value, and the values of constexprs.

    Raises:
        ValueError: an argument has a value that no entry can say.
    """
    declared = {parameter.name for parameter in function.params if parameter.is_constexpr}
    hints = meta["configs"][0]
    entries = []
    for index, name in enumerate(function.arg_names):
        kind, value = meta["signature"][name], meta["constants"].get(name)
        if kind != "constexpr":
            divisible = ["tt.divisibility", 16] in [list(hint) for hint in hints.get((index,), [])]
            entries.append(f"{kind}:16" if divisible else kind)
        elif name in declared or value is None:
            entries.append(repr(value))
        elif value == 1:  # its type is lost, and does not matter
            entries.append("i32:1")
        else:
            raise ValueError(f"{name}: expected a constexpr, None or 1, got {value!r}")
    return entries


# --8<-- [end:launches]


# --8<-- [start:standalone]
def standalone(sources: Mapping[str, str]) -> str:
    """Inductor's Triton kernels as one file: the functions, and the imports that they use.

    Left out are the decorator that chooses a configuration, and a call that asks for a GPU.
    """
    imports: dict[str, None] = {}  # an ordered set
    functions: dict[str, None] = {}
    for source in sources.values():
        lines, module = source.splitlines(), ast.parse(source)
        used: set[str] = set()
        for function in module.body:
            if isinstance(function, ast.FunctionDef):
                function.decorator_list = [
                    node for node in function.decorator_list if "triton.jit" in ast.unparse(node)
                ]
                first = min(node.lineno for node in (function, *function.decorator_list))
                functions["\n".join(lines[first - 1 : function.end_lineno])] = None
                used |= {name.id for name in ast.walk(function) if isinstance(name, ast.Name)}
        for node in module.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                node.names = [name for name in node.names if (name.asname or name.name).partition(".")[0] in used]
                if node.names:
                    imports[ast.unparse(node)] = None
    return "\n".join(imports) + "\n\n\n" + "\n\n\n".join(functions) + "\n"


# --8<-- [end:standalone]


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
