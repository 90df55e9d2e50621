"""A component: one function at several levels, from code as people write it first down to CUDA C++.

The components stand in the snippets of their pages, such as normalization.py; compare_levels.py checks and times them.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Tensor | tuple[Tensor, ...]]
Shape = tuple[int, ...]
LEVELS = {
    0: "as first written",
    1: "native operations",
    2: "TorchScript",
    3: "torch.compile",
    4: "Triton",
    5: "CUDA C++",
}


# --8<-- [start:component]
@dataclass(frozen=True)
class Component:
    """The same function at several levels.

    Attributes:
        name: as `compare_levels` is asked for it: "layer_norm".
        levels: by number (see LEVELS), what makes the function: it compiles or imports what it needs.
        reference: the function once more, which keeps the dtype of its arguments; it is called in float64.
        inputs: makes the arguments, by name and in order, of a shape, for a dtype and a device.
        gradients: the arguments that get a gradient, by name; none for a function that is not trained.
        sizes: what the numbers of a shape are: ("rows", "columns").
        shapes: "small", where the host decides, "typical" and "large"; and "tiny", for Triton's interpreter.
        yardstick: the level whose error says how far the others may be from float64: PyTorch's own operation.
    """

    name: str
    levels: Mapping[int, Callable[[], Function]]
    reference: Function
    inputs: Callable[[Shape, torch.dtype, torch.device], Mapping[str, Any]]
    gradients: tuple[str, ...]
    sizes: tuple[str, ...]
    shapes: Mapping[str, Shape]
    yardstick: int = 1


# --8<-- [end:component]


# --8<-- [start:made]
def scripted(function: Function) -> Function:
    """Level 2, without the warning that TorchScript is deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(function)


def compiled(function: Function) -> Function:
    """Level 3, for one shape: a model in training has few."""
    return torch.compile(function, dynamic=False)


# --8<-- [end:made]


# ---- what is called -------------------------------------------------------------------------------------------------


def forward(function: Function, inputs: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """The outputs, one or several."""
    returned = function(*inputs.values())
    return (returned,) if isinstance(returned, Tensor) else tuple(returned)


def step(
    function: Function, leaves: Mapping[str, Any], gradients: tuple[str, ...], incoming: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """The outputs, and the gradients of some arguments for these incoming gradients."""
    outputs = forward(function, leaves)
    if not gradients:
        return outputs
    return (*outputs, *torch.autograd.grad(outputs, [leaves[name] for name in gradients], incoming))


def trained(inputs: Mapping[str, Any], gradients: tuple[str, ...]) -> dict[str, Any]:
    """The same inputs, of which some ask for a gradient."""
    return {name: t.detach().requires_grad_() if name in gradients else t for name, t in inputs.items()}


def in_float64(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same inputs, for the reference."""
    wide = (isinstance(t, Tensor) and t.is_floating_point() for t in inputs.values())
    return {name: t.double() if is_wide else t for (name, t), is_wide in zip(inputs.items(), wide, strict=True)}


def named(returned: tuple[Tensor, ...], gradients: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Results by name: "output" (of several "output 1" and so on), then "x.grad" for each gradient."""
    outputs = len(returned) - len(gradients)
    names = ["output"] if outputs == 1 else [f"output {number}" for number in range(1, outputs + 1)]
    return dict(zip([*names, *(f"{name}.grad" for name in gradients)], returned, strict=True))


def largest_summands(exact: Mapping[str, Tensor], inputs: Mapping[str, Any]) -> dict[str, float]:
    """Of results that are sums over many elements, such as the gradient of a weight: see equivalence.compare.

    Added up one after the other in fp32, n numbers are rounded n times, each time by the last bit of a partial sum. By
    chance that is the square root of n such bits, of which a quarter is allowed. A result in bf16 hardly notices.
    """
    given = [t for t in inputs.values() if isinstance(t, Tensor) and t.is_floating_point()]
    elements, eps = max(t.numel() for t in given), torch.finfo(given[0].dtype).eps
    sums = {name: t for name, t in exact.items() if 0 < t.numel() < elements}
    bits = torch.finfo(torch.float32).eps / eps / 4
    return {name: t.abs().max().item() * (1 + bits * (elements / t.numel()) ** 0.5) for name, t in sums.items()}
