"""Three kernels that move a tensor once, and what the GPU counted while each ran.

Run `python -m snippets.validation.profiling_counters` where `ncu` is on the PATH. It starts itself again, under ncu.
"""

import sys
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.rms_norm import rms_norm
from snippets.validation.profiling import readable
from snippets.validation.profiling_ncu import COUNTERS, Counted, ask

ROWS, COLUMNS = 32768, 4096


# --8<-- [start:launch]
def calls(device: str, rows: int, columns: int) -> dict[str, Callable[[], Tensor]]:
    """Three ways to move a tensor once to the multiprocessors and once back."""
    x = torch.randn(rows, columns, device=device, dtype=torch.bfloat16)
    weight = torch.ones(columns, device=device, dtype=torch.bfloat16)
    return {
        "ours": lambda: rms_norm(x, weight),
        "eager": lambda: F.rms_norm(x, (columns,), weight),
        "transposed": lambda: x.t().contiguous(),
    }


def launch() -> None:
    """What ncu watches: everything compiled and warm, then each call once."""
    watched = calls("cuda", ROWS, COLUMNS)
    for call in watched.values():
        call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for call in watched.values():
        call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


# --8<-- [end:launch]


def lines(found: Sequence[Counted], moved: int) -> Iterator[str]:
    """A counter a line, a kernel a column; and what follows from the counters.

    Args:
        moved: bytes that each kernel has to read, and to write again.
    """
    for number, one in enumerate(found, 1):
        yield f"{number}  {readable(one.kernel)[:100]}"
    yield f"{'':73}" + "".join(f"{number:>12}" for number in range(1, len(found) + 1))
    for counter in COUNTERS:
        yield f"{counter:73}" + "".join(f"{shown(counter, one.counters[counter]):>12}" for one in found)
    least = "".join(f"{one.traffic / (2 * moved):>10.2f} x" for one in found)
    yield f"{'bytes from and to memory, over those that have to be moved':73}{least}"
    rates = "".join(f"{one.traffic / one.counters[COUNTERS[0]] / 1e9:>7.0f} GB/s" for one in found)
    yield f"{'bytes from and to memory, per second':73}{rates}"


def shown(counter: str, number: float) -> str:
    if counter.startswith("gpu__time"):
        return f"{number * 1e6:.1f} us"
    if "bytes" in counter:
        return f"{number / 1e6:.1f} MB"
    return f"{number:.1f} %" if "pct" in counter else f"{number:.4g}"


def main(arguments: Sequence[str] = ()) -> None:
    """Ask ncu and print what it counted, or why it could not."""
    if "--launch" in arguments:
        launch()
        return
    print("==== counters")
    if not torch.cuda.is_available():
        print("no GPU: there is nothing to count")
        return
    try:
        found = ask([sys.executable, "-m", "snippets.validation.profiling_counters", "--launch"])
        print(*lines(found, ROWS * COLUMNS * 2), sep="\n")
    except RuntimeError as error:
        print(error)


if __name__ == "__main__":
    main(sys.argv[1:])
