"""What usually costs most in eight kinds of model, before and after. Run `python -m snippets.start.your_model`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

from snippets.start.your_model_batched import (
    all_environments_at_once,
    guided_by_one_batch,
    guided_by_two_calls,
    messages_from_edges,
    messages_from_nodes,
    one_environment_at_a_time,
)
from snippets.start.your_model_compiled import (
    residual_by_autograd,
    residual_by_func,
    scan_in_one_kernel,
    scan_step_by_step,
)
from snippets.start.your_model_once import (
    Inputs,
    adapter_apart,
    adapter_merged,
    filtered_as_complex,
    filtered_as_real,
    kept,
    merged_once,
    projected_each_step,
    projected_once,
    spectrum_once,
)

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


# --8<-- [start:compare]
def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    threads = torch.get_num_threads()  # with another number, a compiled function compiles again
    for name, kind in KINDS.items():
        inputs = kind.inputs(SMALL[name], device, torch.float32)
        after = kind.fixed(*inputs)
        torch.testing.assert_close(after(), kind.before(*inputs), rtol=1e-4, atol=1e-4)
        calls = (partial(kind.before, *inputs), after)
        timers = (Timer("f()", globals={"f": f}, num_threads=threads) for f in calls)
        before_us, after_us = (timer.timeit(20).median * 1e6 for timer in timers)
        print(f"{name}: {before_us:.0f} µs -> {after_us:.0f} µs")


# --8<-- [end:compare]


if __name__ == "__main__":
    main()
