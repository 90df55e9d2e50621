"""Functions that change what they are given get no CUDA graph."""

import re
from collections.abc import Callable

import torch
import torch._inductor.config
from torch import Tensor, nn

from snippets.compiler.modes_traps_recordings import plain, recordings


# --8<-- [start:skipped]
class Counter(nn.Module):
    """Adds to a running sum: the same sum as an argument, and as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(x)
        return self.total * 2


def count(total: Tensor, x: Tensor) -> Tensor:
    total.add_(x)
    return total * 2


def skipped(function: Callable, *inputs: Tensor) -> str:
    """Whether the function gets a CUDA graph; and if not, why. Without the option a skip is a line in the log."""
    torch.compiler.reset()
    options = {"triton.cudagraphs": True, "triton.cudagraph_or_error": True}
    with recordings() as recorded, torch._inductor.config.patch(options):
        compiled = torch.compile(function, options=options, dynamic=False)
        try:
            for _ in range(3):
                compiled(*inputs)
        except Exception as error:  # noqa: BLE001  the compiler wraps it, differently in each version
            reason = re.search(r"skipping cudagraphs?.*", str(error), re.DOTALL)
            return plain(RuntimeError(reason[0])) if reason else f"{type(error).__name__}: {plain(error)}"
    return f"{len(recorded)} graph recorded"


# --8<-- [end:skipped]
