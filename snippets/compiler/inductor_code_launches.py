"""What a generated module launches: each call of its kernels and of PyTorch's library, and the bytes of each."""

import itertools
import re
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from snippets.compiler.inductor_code_chosen import chosen
from snippets.compiler.what_compile_does_traffic import nbytes


# --8<-- [start:results]
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


# --8<-- [end:results]
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


# --8<-- [end:launches]
