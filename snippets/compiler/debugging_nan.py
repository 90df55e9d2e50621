"""A result that is NaN, and the first operation that is not finite."""

from collections.abc import Callable

import torch
from torch import Tensor


# --8<-- [start:nan]
def angle(a: Tensor, b: Tensor) -> Tensor:
    """Between vectors."""
    cosine = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))
    return cosine.acos()


def angle_clamped(a: Tensor, b: Tensor) -> Tensor:
    cosine = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))
    return cosine.clamp(-1, 1).acos()


# --8<-- [end:nan]
# --8<-- [start:first]
def first_not_finite(function: Callable, *inputs: Tensor) -> str:
    """The first operation of the graph whose result is not finite, and its line: operation by operation, eagerly."""
    found: list[str] = []

    class Watch(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> object:
            result = super().run_node(node)
            if isinstance(result, Tensor) and not result.isfinite().all() and not found:
                lines = [line.strip() for line in (node.stack_trace or "").splitlines() if line.strip(" ^~")]
                found.append(f"{node.name}, in the line: {lines[-1] if lines else 'unknown'}")
            return result

    def backend(graph: torch.fx.GraphModule, example_inputs: list[Tensor]) -> Callable:
        return lambda *arguments: Watch(graph).run(*arguments)

    torch.compiler.reset()
    torch.compile(function, backend=backend)(*inputs)
    return found[0] if found else "all are finite"


# --8<-- [end:first]
def parallel() -> tuple[Tensor, Tensor]:
    """Vectors that point the same way: the angle is 0."""
    a = torch.tensor([[0.0, 1, 1], [2, 2, 0], [3, 3, 4], [1, 2, 2]], dtype=torch.bfloat16)
    return a, 3 * a
