"""What a CUDA graph holds on to: addresses, outputs and memory. Each trap is run, then its mend.

    python -m snippets.compiler.modes_traps [kept ...]

A CPU has no CUDA graphs, so there this prints nothing but that.
"""

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch._inductor.config
from torch import Tensor, nn
from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler

from snippets.compiler.modes_measured import Call, reserved
from snippets.compiler.modes_options import compiled
from snippets.compiler.modes_workloads import WORKLOADS, make
from snippets.validation.timing import captured, measure, nothing

MIB = 2**20


def graphed(function: Callable) -> Callable:
    """Compiled with CUDA graphs, every size by itself."""
    torch.compiler.reset()
    return torch.compile(function, mode="reduce-overhead", dynamic=False)


# --8<-- [start:recordings]
@contextlib.contextmanager
def recordings() -> Iterator[list[str]]:
    """While it lasts, a CUDA graph that torch.compile records adds an entry to the list."""
    seen: list[str] = []

    def note(about: CallbackArgs) -> None:
        if about.callback_trigger is CallbackTrigger.CUDAGRAPH_RECORDING:
            seen.append(about.compile_id)

    callback_handler.register_start_callback(note)
    try:
        yield seen
    finally:
        callback_handler.remove_start_callback(note)


# --8<-- [end:recordings]

# ---- what is launched -----------------------------------------------------------------------------------------------


# --8<-- [start:launches]
def launches(call: Call) -> int:
    """How often a call asks the driver to start something on the GPU: a kernel, a copy, or a whole graph."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
        call()
        torch.cuda.synchronize()
    asked = [event.name for event in trace.events() if event.device_type.name == "CPU"]
    return sum("Launch" in name or name.startswith(("cudaMemcpy", "cudaMemset")) for name in asked)


# --8<-- [end:launches]

# ---- inputs that move -----------------------------------------------------------------------------------------------


def double(x: Tensor) -> Tensor:
    return x * 2


# --8<-- [start:moved]
def moved_by_hand(device: torch.device) -> tuple[float, float]:
    """A graph recorded by hand, then a new input under the same name: what it computes, and what it should."""
    first = x = torch.full((4,), 1.0, device=device)
    replay = captured(lambda: double(x))
    x = torch.full((4,), 10.0, device=device)  # `x` is another tensor now, and the graph reads the first one's memory
    return float(replay()[0]), float(double(x)[0]) if first is not x else 0.0


def moved(device: torch.device, static: bool, calls: int = 5) -> tuple[int, int, bool]:
    """Compiled, with a new tensor in each call: recordings, launches of a call, and whether all results are right."""
    function = graphed(double)
    inputs = [torch.full((1024, 1024), float(n), device=device) for n in range(calls + 2)]
    if static:
        for x in inputs:
            torch._dynamo.mark_static_address(x, guard=False)  # a promise: this tensor stays where it is
    with recordings() as recorded:
        right = all(bool((function(x) == 2 * x).all()) for x in inputs)
    return len(recorded), launches(partial(function, inputs[0])), right


def price_of_copying(device: torch.device, mib: int) -> dict[str, float]:
    """GPU seconds of one compiled operation on an input of so many MiB: launched, replayed, replayed without a copy."""
    x = torch.randn(mib * MIB // 4, device=device)
    fixed = x.clone()
    torch._dynamo.mark_static_address(fixed, guard=False)
    torch.compiler.reset()
    calls = {
        "launched": partial(torch.compile(lambda t: t * 2), x),
        "replayed": partial(torch.compile(lambda t: 2 * t, mode="reduce-overhead"), x),
        "replayed, input marked static": partial(torch.compile(lambda t: t + t, mode="reduce-overhead"), fixed),
    }
    return {name: timing.p50 for name, timing in measure(calls, device, "device", rounds=20).items()}


# --8<-- [end:moved]

# ---- outputs that are overwritten -----------------------------------------------------------------------------------


# --8<-- [start:overwritten]
def overwritten_by_hand(device: torch.device) -> tuple[float, float]:
    """A result of a graph recorded by hand, before the next replay and after it."""
    x = torch.full((4,), 1.0, device=device)
    replay = captured(lambda: double(x))
    kept = replay()
    before = float(kept[0])
    x.fill_(10.0)
    replay()
    return before, float(kept[0])


def kept_results(
    device: torch.device, warm: int = 0, mend: Callable[[Tensor], Tensor] = lambda y: y, before: Call = nothing
) -> str:
    """Keep the results of four compiled calls, then add them up: the sum, which should be 48, or what is said instead.

    `warm` calls are made before; `mend` is done to each result, and `before` is called before each call.
    """
    function = graphed(double)
    for _ in range(warm):
        function(torch.full((4,), 100.0, device=device))
    results = []
    for n in range(4):
        before()
        results.append(mend(function(torch.full((4,), float(n), device=device))))
    try:
        return f"sum {float(sum(y.sum() for y in results)):.0f}"
    except RuntimeError as error:
        return plain(error)


# --8<-- [end:overwritten]


def plain(error: BaseException) -> str:
    """What an error says, without where."""
    text = re.sub(r"Stack trace: .*?\. To prevent", "Stack trace: …. To prevent", str(error), flags=re.DOTALL)
    return " ".join(re.sub(r"(Found from ?:).*", r"\1 …", text, flags=re.DOTALL).split())


# ---- memory that is kept --------------------------------------------------------------------------------------------


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

# ---- graphs that are not made ---------------------------------------------------------------------------------------


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


# ---- printed --------------------------------------------------------------------------------------------------------


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
