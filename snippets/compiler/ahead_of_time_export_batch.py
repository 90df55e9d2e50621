"""A first exported program, and what becomes of its batch by what is said of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import UserError
from torch.export import Dim, ExportedProgram, export

X = torch.linspace(-1, 2, 32).view(4, 8)


@dataclass(frozen=True)
class Asked:
    """A module, what it is exported with, and what is said of sizes."""

    module: nn.Module
    inputs: tuple[Any, ...] = (X,)
    shapes: Any = None
    strict: bool = False

    def export(self) -> ExportedProgram:
        return export(self.module, self.inputs, dynamic_shapes=self.shapes, strict=self.strict)


# --8<-- [start:first]
class Norm(nn.Module):
    """Rows of length one, times a learned scale."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return x / x.norm(dim=-1, keepdim=True) * self.scale


def first() -> ExportedProgram:
    return export(Norm(), (X,), dynamic_shapes={"x": {0: Dim("batch", min=1, max=64)}})


# --8<-- [end:first]
# --8<-- [start:batch]
def sizes(program: ExportedProgram) -> list[str]:
    """The first size of each input of an exported program: a number, or the range that it may have."""
    names = set(program.graph_signature.user_inputs)
    inputs = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    return [size_of(program, value.shape[0]) for value in inputs if isinstance(value, Tensor)]


def size_of(program: ExportedProgram, size: int | torch.SymInt) -> str:
    if isinstance(size, int) or not size.node.expr.free_symbols:
        return f"only {size}"  # a symbol that the code made a number stays one of type SymInt
    limits = program.range_constraints.get(size.node.expr)
    if limits is None:
        return "any"
    return f"{limits.lower} to {limits.upper}" if limits.upper < 10**9 else f"{limits.lower} or more"


# --8<-- [end:batch]
# --8<-- [start:marks]
def marked(x: Tensor) -> Tensor:
    x = x.clone()
    torch._dynamo.mark_dynamic(x, 0)
    return x


# --8<-- [end:marks]
# --8<-- [start:asked]
ASKED: dict[str, tuple[Any, Callable[[Tensor], Tensor]]] = {
    "nothing": (None, torch.clone),
    "Dim('batch', min=1, max=64)": (({0: Dim("batch", min=1, max=64)},), torch.clone),
    "Dim.DYNAMIC": (({0: Dim.DYNAMIC},), torch.clone),
    "Dim.AUTO": (({0: Dim.AUTO},), torch.clone),
    "mark_dynamic(x, 0)": (None, marked),
    "mark_dynamic(x, 0); x = x.half()": (None, lambda x: marked(x).half()),
}


# --8<-- [end:asked]
def became(module: nn.Module, x: Tensor, shapes: Any) -> str:
    try:
        return sizes(Asked(module, (x,), shapes).export())[0]
    except (UserError, ValueError):
        return "refused"
