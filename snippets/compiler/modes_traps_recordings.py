"""How many CUDA graphs are recorded, and how many launches a call is."""

import contextlib
import re
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler

from snippets.compiler.modes_measured import Call


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
def double(x: Tensor) -> Tensor:
    return x * 2


def plain(error: BaseException) -> str:
    """What an error says, without where."""
    text = re.sub(r"Stack trace: .*?\. To prevent", "Stack trace: …. To prevent", str(error), flags=re.DOTALL)
    return " ".join(re.sub(r"(Found from ?:).*", r"\1 …", text, flags=re.DOTALL).split())
