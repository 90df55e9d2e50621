"""Several ways to compute one thing, and the source of each."""

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Function = Callable[..., Tensor]
Check = Callable[[Tensor, Mapping[str, Tensor]], None]


@dataclass(frozen=True)
class Experiment:
    """Several ways to compute one thing from the same tensors.

    Attributes:
        name: of the experiment's folder.
        inputs: the tensors, all on one device.
        variants: by name; the first one is plain PyTorch and sets the error bound.
        compiled: names of the variants that `torch.compile` is to compile.
        ours: names of those that launch Triton kernels of their own: on a CPU these are interpreted, so they are
            checked and not timed.
        check: for random results, which cannot be held against the first variant's: is called with a variant's result
            and the inputs, and raises AssertionError.
    """

    name: str
    inputs: Mapping[str, Tensor]
    variants: Mapping[str, Function]
    compiled: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    check: Check | None = None

    @property
    def device(self) -> torch.device:
        return next(iter(self.inputs.values())).device

    def role(self, name: str) -> str:
        """What a variant is: "compiled", "ours" or "plain"."""
        return "compiled" if name in self.compiled else "ours" if name in self.ours else "plain"


def sources_of(experiment: Experiment) -> str:
    """The variants' sources, each function once."""
    named = {
        function: [n for n, f in experiment.variants.items() if f is function]
        for function in experiment.variants.values()
    }
    parts = [f"# {', '.join(names)}\n{textwrap.dedent(_source(function))}" for function, names in named.items()]
    return "\n\n".join(parts)


def _source(function: Function) -> str:
    try:
        return inspect.getsource(function)
    except TypeError:  # written in C
        return f"{getattr(function, '__name__', function)}  # of torch itself\n"
