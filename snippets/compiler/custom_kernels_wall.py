"""What Inductor generates around a kernel of your own: the calls of the compiled block, in order, and what they move.

Run `python -m snippets.compiler.custom_kernels_wall`. Without a GPU it shows the two ways that the compiler calls and
does not look into; a Triton kernel that it can see needs a GPU to be compiled.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from snippets.compiler.custom_kernels import DEVICE, WAYS, block, written_out
from snippets.compiler.inductor_code import made
from snippets.compiler.inductor_code_launches import Launch

SEEN = {"plain", "triton-op"}  # whose launch Inductor writes itself


# --8<-- [start:calls]
def calls(norm: Callable[[Tensor, Tensor, float], Tensor], rows: int = 1024, columns: int = 1024) -> list[Launch]:
    """What the compiled block calls, in order, with `norm` as its norm: kernels of Inductor, and operators."""
    x, residual = torch.randn(2, rows, columns, device=DEVICE)
    w = torch.randn(columns, device=DEVICE)
    (forward,) = made(lambda x, residual, w: block(x, residual, w, norm), x, residual, w)
    return forward.launches


def shown(name: str, launches: list[Launch], size: int) -> str:
    """A line for each call: its name, and how many tensors of `size` bytes it reads and writes."""
    lines = [f"  {launch.name:42}{launch.bytes / size:8.1f}" for launch in launches]
    return "\n".join([name, *lines, f"  {'in all':42}{sum(launch.bytes for launch in launches) / size:8.1f}"])


# --8<-- [end:calls]


def main() -> None:
    ways = {"written out": written_out} | {
        name: WAYS[name] for name in WAYS if DEVICE.type == "cuda" or name not in SEEN
    }
    for name, norm in ways.items():
        print(shown(name, calls(norm), 4 * 1024 * 1024))


if __name__ == "__main__":
    main()
