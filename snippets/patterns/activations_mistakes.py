"""How far approximations of GELU are from it, and a SiLU whose gradient is no number.

Run `python -m snippets.patterns.activations_mistakes`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


# --8<-- [start:approximations]
def tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def quick(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def silu(x: Tensor) -> Tensor:
    return F.silu(x)


# --8<-- [end:approximations]


# --8<-- [start:gradients]
def silu_by_exp(x: Tensor) -> Tensor:
    """exp(-x) overflows where x is very negative: the value is right, and its gradient 0 * inf."""
    return x / (1 + torch.exp(-x))


# --8<-- [end:gradients]

APPROXIMATIONS = (tanh, quick, silu)


def furthest(approximation: object) -> tuple[float, float]:
    """The largest difference from GELU in float64, and where it is."""
    x = torch.linspace(-8, 8, 16001, dtype=torch.float64)
    off = (approximation(x) - F.gelu(x)).abs()  # type: ignore[operator]
    return off.max().item(), x[off.argmax()].abs().item()


def gradient(function: object, at: float) -> float:
    x = torch.tensor(at, requires_grad=True)
    function(x).backward()  # type: ignore[operator]
    assert x.grad is not None
    return x.grad.item() + 0.0  # no -0


def main() -> None:
    """The largest difference of each approximation, then a gradient of SiLU by both formulas."""
    for approximation in APPROXIMATIONS:
        off, where = furthest(approximation)
        print(f"{approximation.__name__:14} differs from GELU by up to {off:.0e}, at ±{where:.1f}")
    for function in (silu_by_exp, silu):
        print(f"{function.__name__:14} gradient at -100: {gradient(function, -100.0):g}")


if __name__ == "__main__":
    main()
