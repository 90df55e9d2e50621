"""What usually costs most in eight kinds of model, before and after. Run `python -m snippets.start.your_model`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._higher_order_ops import associative_scan
from torch.utils.benchmark import Timer

Inputs = tuple[Tensor, ...]
Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Kind:
    """One kind of model.

    Attributes:
        shapes: the shape of each input, by the sizes of the model.
        before, after: both called with the inputs; `after` with what `once` makes of them.
        once: what the fix computes once, instead of in every call.
        compiled: whether the fix compiles `after`.
    """

    shapes: Callable[..., list[tuple[int, ...]]]
    before: Function
    after: Function
    once: Callable[..., Inputs] = lambda *inputs: inputs
    compiled: bool = False

    def inputs(self, sizes: Mapping[str, int], device: torch.device, dtype: torch.dtype) -> Inputs:
        """Random inputs and weights; a matrix keeps the size of what it multiplies."""
        torch.manual_seed(0)
        shapes = self.shapes(**sizes)
        fans = [1] + [prod(shape[1:]) if len(shape) == 4 else shape[-1] for shape in shapes[1:]]
        return tuple(
            (torch.randn(shape, device=device) / fan**0.5).to(dtype) for shape, fan in zip(shapes, fans, strict=True)
        )

    def fixed(self, *inputs: Tensor) -> Callable[[], Tensor]:
        """The call after the fix."""
        run = torch.compile(self.after, fullgraph=True, dynamic=False) if self.compiled else self.after
        return partial(run, *self.once(*inputs))


# --8<-- [start:lora]
def adapter_apart(x: Tensor, weight: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(x, weight) + 0.5 * F.linear(F.linear(x, down), up)


def merged_once(x: Tensor, weight: Tensor, up: Tensor, down: Tensor) -> Inputs:
    return x, weight + 0.5 * up @ down


adapter_merged = F.linear
# --8<-- [end:lora]


# --8<-- [start:encoder-decoder]
def projected_each_step(x: Tensor, encoded: Tensor, key: Tensor, value: Tensor) -> Tensor:
    keys, values = F.linear(encoded, key), F.linear(encoded, value)  # of tokens that never change
    return F.scaled_dot_product_attention(x, keys, values)


def projected_once(x: Tensor, encoded: Tensor, key: Tensor, value: Tensor) -> Inputs:
    return x, F.linear(encoded, key), F.linear(encoded, value)


kept = F.scaled_dot_product_attention
# --8<-- [end:encoder-decoder]


# --8<-- [start:diffusion]
def denoise(x: Tensor, text: Tensor, conv: Tensor) -> Tensor:
    for _ in range(4):
        x = x + F.conv2d(F.silu(x + text[:, :, None, None]), conv, padding=1)
    return x


def guided_by_two_calls(x: Tensor, text: Tensor, conv: Tensor) -> Tensor:
    without, with_text = (denoise(x, each, conv) for each in text.split(1))
    return without + 5 * (with_text - without)


def guided_by_one_batch(x: Tensor, text: Tensor, conv: Tensor) -> Tensor:
    without, with_text = denoise(x.expand(2, -1, -1, -1), text, conv).split(1)
    return without + 5 * (with_text - without)


# --8<-- [end:diffusion]


# --8<-- [start:graph]
@cache
def edges(nodes: int, degree: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where each edge begins and ends; made once, as a graph is."""
    ends = torch.arange(nodes, device=device).repeat_interleave(degree)
    return (ends * 7 + torch.arange(len(ends), device=device)) % nodes, ends


def messages_from_edges(x: Tensor, weight: Tensor, degree: int = 16) -> Tensor:
    begins, ends = edges(len(x), degree, x.device)
    return torch.zeros_like(x).index_add(0, ends, F.linear(x[begins], weight))  # one row per edge


def messages_from_nodes(x: Tensor, weight: Tensor, degree: int = 16) -> Tensor:
    begins, ends = edges(len(x), degree, x.device)
    return torch.zeros_like(x).index_add(0, ends, F.linear(x, weight)[begins])  # one row per node


# --8<-- [end:graph]


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


# --8<-- [start:reinforcement]
def value_of(observation: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return F.linear(F.linear(observation, first).tanh(), second).amax(-1)


def one_environment_at_a_time(observations: Tensor, first: Tensor, second: Tensor) -> Tensor:
    best = [value_of(each, first, second).item() for each in observations]  # each item() waits for the GPU
    return torch.tensor(best, device=first.device, dtype=first.dtype)


all_environments_at_once = value_of
# --8<-- [end:reinforcement]


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


# --8<-- [start:fft]
def filtered_as_complex(signal: Tensor, filters: Tensor) -> Tensor:
    return torch.fft.ifft(torch.fft.fft(signal) * torch.fft.fft(filters)).real


def spectrum_once(signal: Tensor, filters: Tensor) -> Inputs:
    return signal, torch.fft.rfft(filters)


def filtered_as_real(signal: Tensor, spectrum: Tensor) -> Tensor:
    return torch.fft.irfft(torch.fft.rfft(signal) * spectrum, n=signal.shape[-1])


# --8<-- [end:fft]


# --8<-- [start:stft]
def power(signal: Tensor, window: Tensor) -> Tensor:
    spectrum = torch.stft(signal, len(window), len(window) // 4, window=window, return_complex=True)
    return torch.view_as_real(spectrum).square().sum(-1)  # real numbers: Inductor fuses these, but not abs()


# --8<-- [end:stft]

KINDS = {
    "LoRA": Kind(
        lambda tokens, width, inner: [(tokens, width), (width, width), (width, inner), (inner, width)],
        adapter_apart, adapter_merged, merged_once,
    ),
    "encoder-decoder": Kind(
        lambda batch, length, width: [(batch, 1, width), (batch, length, width), (width, width), (width, width)],
        projected_each_step, kept, projected_once,
    ),
    "diffusion": Kind(
        lambda channels, side: [(1, channels, side, side), (2, channels), (channels, channels, 3, 3)],
        guided_by_two_calls, guided_by_one_batch,
    ),
    "graph network": Kind(
        lambda rows, width: [(rows, width), (width, width)], messages_from_edges, messages_from_nodes
    ),
    "state-space or scan": Kind(
        lambda steps, channels: [(steps, channels), (steps, channels)],
        scan_step_by_step, scan_in_one_kernel, compiled=True,
    ),
    "reinforcement learning": Kind(
        lambda batch, width: [(batch, width), (width, width), (8, width)],
        one_environment_at_a_time, all_environments_at_once,
    ),
    "physics-informed": Kind(
        lambda rows, width: [(rows, 1), (width,), (width, width), (width,)],
        residual_by_autograd, residual_by_func, compiled=True,
    ),
    "FFT": Kind(
        lambda rows, length: [(rows, length), (rows, length)],
        filtered_as_complex, filtered_as_real, spectrum_once,
    ),
}  # fmt: skip
SMALL = {
    "LoRA": {"tokens": 8, "width": 256, "inner": 8},
    "encoder-decoder": {"batch": 2, "length": 128, "width": 64},
    "diffusion": {"channels": 16, "side": 16},
    "graph network": {"rows": 256, "width": 64},
    "state-space or scan": {"steps": 64, "channels": 64},
    "reinforcement learning": {"batch": 16, "width": 32},
    "physics-informed": {"rows": 128, "width": 32},
    "FFT": {"rows": 16, "length": 512},
}


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for name, kind in KINDS.items():
        inputs = kind.inputs(SMALL[name], device, torch.float32)
        after = kind.fixed(*inputs)
        torch.testing.assert_close(after(), kind.before(*inputs), rtol=1e-4, atol=1e-4)
        calls = (partial(kind.before, *inputs), after)
        before_us, after_us = (Timer("f()", globals={"f": f}).timeit(20).median * 1e6 for f in calls)
        print(f"{name}: {before_us:.0f} µs -> {after_us:.0f} µs")


if __name__ == "__main__":
    main()
