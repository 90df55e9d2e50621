"""A float that is both a factor and eps: the disk cache returns code for an earlier eps."""

from collections.abc import Iterable

import torch
import torch._functorch.config
import torch._inductor.config
import torch.nn.functional as F
from torch import Tensor


# --8<-- [start:floats]
def normalized(x: Tensor, scale: float) -> Tensor:
    """The float is a factor, and is in eps."""
    return F.rms_norm(x * scale, x.shape[-1:], eps=scale + 0.5)


def errors_of_floats(scales: Iterable[float], cached: bool) -> list[float]:
    """The largest error of each compiled call, against eager code."""
    torch.compiler.reset()
    x = torch.linspace(-1, 1, 32).view(4, 8)
    compiled = torch.compile(normalized)
    with (
        torch._inductor.config.patch(fx_graph_cache=cached),
        torch._functorch.config.patch(enable_autograd_cache=cached),
    ):
        errors = [compiled(x, s) - normalized(x, s) for s in scales]
        return [error.abs().max().item() for error in errors]


# --8<-- [end:floats]
