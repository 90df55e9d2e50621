"""What every component of the ladder is held to: a page's test says at which shape, and which levels it leaves out."""

from collections.abc import Collection, Sequence

import torch

from snippets.patterns.compare_levels import compare
from snippets.patterns.levels import Component, Shape

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"


def slow_or_other(component: Component, components: Sequence[Component], dtype: torch.dtype) -> set[int]:
    """The levels to leave out: what takes seconds to compile, and what is not the same without a GPU."""
    left_out = set()
    if not ON_GPU:
        left_out = {5} if component is components[-1] else {3, 5}  # the compiler takes seconds, so once
    if dtype == torch.bfloat16:
        left_out |= {3} if ON_GPU else {3, 4}  # Triton's interpreter cuts off to bf16 where a GPU rounds
    return left_out


def problems(
    component: Component, shape: Shape, dtype: torch.dtype, left_out: Collection[int]
) -> tuple[dict[str, str], dict[str, str]]:
    """What `compare` finds against float64, forward and backward, level by level; and the same if it finds nothing."""
    torch.manual_seed(0)
    functions = {str(number): make() for number, make in component.levels.items() if number not in left_out}
    inputs = component.inputs(shape, dtype, DEVICE)
    found = compare(functions, inputs, component.gradients, component.reference, str(component.yardstick), rounds=0)
    return {line.name: line.problem for line in found.lines}, dict.fromkeys(functions, "")


def reference_is_the_formula(component: Component, shape: Shape, rtol: float = 1e-12, atol: float = 1e-12) -> None:
    """Level 0 is what the page shows as the formula; in float64 it is the reference, to rounding."""
    inputs = component.inputs(shape, torch.float64, torch.device("cpu"))
    expected = component.reference(*inputs.values())
    torch.testing.assert_close(component.levels[0]()(*inputs.values()), expected, rtol=rtol, atol=atol)
