"""What becomes fast by being compiled whole: a scan, derivatives, a spectrogram."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._higher_order_ops import associative_scan

from snippets.start.your_model_once import Inputs


# --8<-- [start:scan]
def scan_step_by_step(x: Tensor, gate: Tensor) -> Tensor:
    state, states = torch.zeros_like(x[0]), []
    for value, decay in zip(x, gate.sigmoid(), strict=True):
        state = decay * state + value
        states.append(state)
    return torch.stack(states)


def scan_in_one_kernel(x: Tensor, gate: Tensor) -> Tensor:
    def joined(early: Inputs, late: Inputs) -> Inputs:
        return early[0] * late[0], early[1] * late[0] + late[1]

    mode = "pointwise" if x.is_cuda else "generic"
    return associative_scan(joined, (gate.sigmoid(), x), 0, combine_mode=mode)[1]


# --8<-- [end:scan]


# --8<-- [start:physics]
def network(x: Tensor, first: Tensor, middle: Tensor, last: Tensor) -> Tensor:
    return (F.linear(F.linear(x * first, middle).tanh(), middle).tanh() * last).sum(-1)


def residual_by_autograd(points: Tensor, first: Tensor, middle: Tensor, last: Tensor) -> Tensor:
    x = points.detach().requires_grad_()
    middle = middle.detach().requires_grad_()
    (slope,) = torch.autograd.grad(network(x, first, middle, last).sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
    return torch.autograd.grad((curvature + x).square().mean(), middle)[0]


def residual_by_func(points: Tensor, first: Tensor, middle: Tensor, last: Tensor) -> Tensor:
    def loss(middle: Tensor) -> Tensor:
        def slope(x: Tensor) -> Tensor:
            return torch.func.grad(lambda x: network(x, first, middle, last).sum())(x)

        curvature = torch.func.grad(lambda x: slope(x).sum())(points)
        return (curvature + points).square().mean()

    return torch.func.grad(loss)(middle)


# --8<-- [end:physics]


# --8<-- [start:traced]
def residual_traced(*inputs: Tensor) -> Tensor:
    with torch._dynamo.config.patch(trace_autograd_ops=True):  # read in the first call
        return torch.compile(residual_by_autograd, fullgraph=True)(*inputs)


# --8<-- [end:traced]


# --8<-- [start:stft]
def power(signal: Tensor, window: Tensor) -> Tensor:
    spectrum = torch.stft(signal, len(window), len(window) // 4, window=window, return_complex=True)
    return torch.view_as_real(spectrum).square().sum(-1)  # real numbers: Inductor fuses these, but not abs()


# --8<-- [end:stft]
