"""What a CUDA graph holds on to: addresses, outputs and memory. Each trap is run, then its mend.

    python -m snippets.compiler.modes_traps [kept ...]

A CPU has no CUDA graphs, so there this prints nothing but that.
"""

import sys
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from snippets.compiler.modes_measured import reserved
from snippets.compiler.modes_options import compiled
from snippets.compiler.modes_traps_moved import MIB, moved, moved_by_hand, price_of_copying
from snippets.compiler.modes_traps_overwritten import kept_results, overwritten_by_hand
from snippets.compiler.modes_traps_recordings import launches, recordings
from snippets.compiler.modes_traps_skipped import Counter, count, skipped
from snippets.compiler.modes_workloads import WORKLOADS, make


# --8<-- [start:kept]
def kept_memory(device: torch.device, mode: str, sizes: list[int], dynamic: bool = False) -> tuple[list[int], int, int]:
    """Bytes that PyTorch holds after calls of each size, their results gone; recordings; bytes after a reset."""
    torch.compiler.reset()
    weight = torch.randn(2048, 2048, device=device) / 2048**0.5
    layers(torch.randn(sizes[0], 2048, device=device), weight)  # the library's workspace is no graph's
    function = torch.compile(layers, mode=mode, dynamic=dynamic)
    base, held = reserved(device), []
    with recordings() as recorded:
        for size in sizes:
            for _ in range(3):
                function(torch.randn(size, 2048, device=device), weight)
            held.append(reserved(device) - base)
    torch.compiler.reset()
    return held, len(recorded), reserved(device) - base


def layers(x: Tensor, weight: Tensor) -> Tensor:
    """Some products in a row, each with a result of its own."""
    for _ in range(4):
        x = torch.relu(x @ weight)
    return x


# --8<-- [end:kept]


def show_launches(device: torch.device) -> Iterator[str]:
    module, inputs = make(WORKLOADS["block"], device, torch.bfloat16)
    functions = {"eager": module} | {mode: compiled(module, mode) for mode in ("default", "reduce-overhead")}
    for name, function in functions.items():
        for _ in range(3):
            function(*inputs)
        yield f"{name:<16}{launches(partial(function, *inputs)):>4} launches a call"


def show_moved(device: torch.device) -> Iterator[str]:
    wrong, right = moved_by_hand(device)
    yield f"recorded by hand, input replaced: computes {wrong:.0f}, should be {right:.0f}"
    for name, static in (("torch.compile", False), ("torch.compile, input marked static", True)):
        recorded, started, good = moved(device, static)
        yield f"{name}: in 7 calls with 7 tensors {recorded} recordings"
        yield f"    a call is {started} launches, and the results are {'right' if good else 'WRONG'}"


def show_copied(device: torch.device) -> Iterator[str]:
    for name, seconds in price_of_copying(device, 256).items():
        yield f"{name:<32}{seconds * 1e6:9.1f} us"


def show_overwritten(device: torch.device) -> Iterator[str]:
    before, after = overwritten_by_hand(device)
    yield f"recorded by hand: the result is {before:.0f}, and after the next replay {after:.0f}, without a word"
    yield f"four results of torch.compile, from the first call on: {kept_results(device)}"
    yield f"the same after three other calls: {kept_results(device, warm=3)}, should be 48"
    marked = kept_results(device, before=torch.compiler.cudagraph_mark_step_begin)
    yield f"cudagraph_mark_step_begin() before each: {marked}"
    yield f"each result cloned: {kept_results(device, warm=3, mend=torch.clone)}"


def show_kept(device: torch.device) -> Iterator[str]:
    sizes = [8192, 4096, 2048, 1024]
    yield f"{'MiB held after':<44}{'size 1':>8}{'size 2':>8}{'size 3':>8}{'size 4':>8}{'a reset':>10}{'graphs':>8}"
    for mode, rows, dynamic in (
        ("default", sizes, False),
        ("reduce-overhead", sizes, False),
        ("reduce-overhead", sizes[::-1], False),
        ("reduce-overhead", sizes, True),
    ):
        held, recorded, after = kept_memory(device, mode, rows, dynamic)
        name = f"{mode}, {'large' if rows is sizes else 'small'} first{', dynamic=True' if dynamic else ''}"
        yield f"{name:<44}" + "".join(f"{h // MIB:>8}" for h in held) + f"{after // MIB:>10}{recorded:>8}"


def show_skipped(device: torch.device) -> Iterator[str]:
    x, total = (torch.ones(4, device=device) for _ in range(2))
    yield f"an argument is changed in place: {skipped(count, total, x)}"
    torch._dynamo.mark_static_address(total, guard=False)
    yield f"the argument is marked static: {skipped(count, total, x)}"
    yield f"a buffer of the module is changed in place: {skipped(Counter().to(device), x)}"


TRAPS = {
    "launches": show_launches,
    "moved": show_moved,
    "copied": show_copied,
    "overwritten": show_overwritten,
    "kept": show_kept,
    "skipped": show_skipped,
}


@torch.no_grad()
def main(names: list[str]) -> None:
    """Each trap, then its mend; or those that are named."""
    if not torch.cuda.is_available():
        print("This machine has no GPU: a CPU has no CUDA graphs, so none of these traps exists here.")
        return
    for name in names or TRAPS:
        print(f"==== {name}", flush=True)
        for line in TRAPS[name](torch.device("cuda")):
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
