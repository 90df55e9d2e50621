"""Producers and consumers: what fusing them saves, and where it saves nothing. Each function moves what its name says.

Run `python -m snippets.patterns.fusion` for the bytes of each way, counted on tensors without data.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses import FakeTensorMode

from snippets.compiler.what_compile_does_traffic import Traffic, nbytes


# --8<-- [start:vertical]
def used_once(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Nobody but gelu reads the sum: fused, the sum never reaches memory."""
    return F.gelu(x * scale + shift)


def used_again(x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Somebody else reads the sum, too: fused, it is read less often, and written all the same."""
    hidden = x * scale + shift
    return F.gelu(hidden), hidden


# --8<-- [end:vertical]


# --8<-- [start:horizontal]
def statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Three consumers of one tensor: fused, they read it once."""
    return x.sum(-1), x.amax(-1), x.amin(-1)


def each_scaled(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors that have nothing in common: fused, they move the same bytes in fewer launches."""
    return tuple(tensor * 0.5 for tensor in tensors)


def scaled_together(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The same in as few launches as PyTorch's kernels for lists of tensors need."""
    return tuple(torch._foreach_mul(tensors, 0.5))


# --8<-- [end:horizontal]


# --8<-- [start:epilogue]
def apart(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The product writes its result, and the activation reads it, and writes it again."""
    return F.relu(F.linear(x, weight, bias))


def in_place(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One tensor less is allocated. The activation reads and writes as many bytes."""
    return F.linear(x, weight, bias).relu_()


def in_the_product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The library's product with the activation as its epilogue: bias and relu in registers, before the store."""
    return torch._addmm_activation(bias, x, weight.t(), use_gelu=False)


# --8<-- [end:epilogue]


# --8<-- [start:recomputed]
def gated(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def forward_saving(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The result, and what backward would otherwise compute again: two tensors more to write, and later to read."""
    sigmoid = torch.sigmoid(gate)
    activated = gate * sigmoid
    return activated * up, sigmoid, activated


def backward_of_saved(grad: Tensor, up: Tensor, sigmoid: Tensor, activated: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of gate and up: four tensors read."""
    return grad * up * (sigmoid + activated * (1 - sigmoid)), grad * activated


def backward_recomputing(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The same with three tensors read. The sigmoid is computed a second time, in registers."""
    sigmoid = torch.sigmoid(gate)
    activated = gate * sigmoid
    return grad * up * (sigmoid + activated * (1 - sigmoid)), grad * activated


# --8<-- [end:recomputed]


# --8<-- [start:counted]
def moved(function: Callable, *inputs: Tensor) -> tuple[int, int, int]:
    """Operations of an eager call, the bytes that they move, and those of one kernel: every tensor once."""
    with Traffic() as traffic:
        results = function(*inputs)
    kernels = [one for one in traffic.operations if not one[0].startswith(("aten.t.", "aten.detach"))]
    return len(kernels), sum(read + written for _, read, written in kernels), nbytes(inputs) + nbytes(results)


# --8<-- [end:counted]


def main() -> None:
    """Count each way, in tensors of rows x columns, which is how the page speaks of bytes."""
    rows, columns = 16384, 4096
    with FakeTensorMode():
        x, y, grad, kept, too = (torch.empty(rows, columns, dtype=torch.bfloat16) for _ in range(5))
        scale, shift = (torch.empty(columns, dtype=torch.bfloat16) for _ in range(2))
        print("==== counted")
        print(f"{'':<22}{'operations':>11}{'they move':>11}{'one kernel':>12}")
        for function, inputs in (
            (used_once, (x, scale, shift)),
            (used_again, (x, scale, shift)),
            (statistics, (x,)),
            (each_scaled, (x, y)),
        ):
            count, now, least = moved(function, *inputs)
            print(f"{function.__name__:<22}{count:>11}{now / nbytes(x):>11.1f}{least / nbytes(x):>12.1f}")
        print("==== recomputed")
        print(f"{'':<22}{'forward':>9}{'backward':>10}{'together':>10}")
        for name, passes in (
            ("saving", ((forward_saving, (x, y)), (backward_of_saved, (grad, y, kept, too)))),
            ("computing again", ((gated, (x, y)), (backward_recomputing, (grad, x, y)))),
        ):
            forward, backward = (moved(function, *inputs)[2] / nbytes(x) for function, inputs in passes)
            print(f"{name:<22}{forward:>9.1f}{backward:>10.1f}{forward + backward:>10.1f}")


if __name__ == "__main__":
    main()
