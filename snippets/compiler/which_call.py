"""Which call caused this compilation? Each compilation prints the line that called, the reason and the seconds.

Run `python -m snippets.compiler.which_call`.
"""

# --8<-- [start:watch]
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType

import torch
from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler
from torch._dynamo.utils import get_metrics_context

STDLIB, TORCH = sysconfig.get_path("stdlib"), torch.__path__[0]


def watch_compilations(tell: Callable[[str], object] = print) -> Callable[[], None]:
    """From now on, tell each compilation. Returns what ends this; torch.compiler.reset() ends it, too."""
    began: list[tuple] = []
    functions: dict[str, str] = {}  # by number; a backward has its forward's

    def start(compilation: CallbackArgs) -> None:
        began.append((compilation, calling_lines(), compiled_function(), sys.exc_info()[1], time.perf_counter()))

    def end(_: CallbackArgs) -> None:
        compilation, lines, function, caught, at = began.pop()
        seconds, error = time.perf_counter() - at, sys.exc_info()[1]
        number, what = compilation.compile_id, reason(compilation)
        if error is not caught:
            what += f"; given up: {type(error).__name__}"
        function = functions.setdefault(number, function)
        tell(f"[{number}] {seconds:.2f} s, called by {lines}\n      {function}: {what}")

    callback_handler.register_start_callback(start)
    callback_handler.register_end_callback(end)

    def stop() -> None:
        callback_handler.remove_start_callback(start)
        callback_handler.remove_end_callback(end)

    return stop


def reason(compilation: CallbackArgs) -> str:
    """What is compiled, and why: the first line of the guard that failed, as TORCH_LOGS=recompiles has it."""
    if compilation.callback_trigger is CallbackTrigger.CUDAGRAPH_RECORDING:
        return "records a CUDA graph"
    if compilation.callback_trigger is CallbackTrigger.LAZY_BACKWARD:
        return "its backward"
    failed = get_metrics_context()._metrics.get("recompile_reason")
    if not failed:
        return "new"
    return "again, " + failed.splitlines()[0].partition(": ")[2].partition("  #")[0].strip()


def calling_lines() -> str:
    """The innermost line outside of torch and, where a package has that line, the innermost one of yours."""
    main = sys._current_frames().get(threading.main_thread().ident)  # autograd has threads of its own
    lines = [*outside(sys._getframe(2)), *outside(main)]
    if not lines:
        return "?"
    own = next((line for line in lines if "site-packages" not in line.f_code.co_filename), lines[0])
    return " from ".join(dict.fromkeys(place(line) for line in (lines[0], own)))


def outside(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames from this one outwards that are neither torch's nor the standard library's."""
    while frame is not None:
        file = frame.f_code.co_filename
        library = file.startswith(STDLIB) and "site-packages" not in file
        if not (library or file.startswith((TORCH, "<frozen", "<eval_with_key"))):
            yield frame
        frame = frame.f_back


def place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} in {frame.f_code.co_name}"


def compiled_function() -> str:
    """The name of what is compiled: one of Dynamo's own frames has its code."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_locals.get("code")
        if isinstance(code, CodeType) and frame.f_code.co_filename.startswith(TORCH):
            return getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on with its class
        frame = frame.f_back
    return "?"


# --8<-- [end:watch]


# --8<-- [start:program]
def loss(x: torch.Tensor, weight: torch.Tensor, scale: float) -> torch.Tensor:
    h = (x @ weight * scale).relu()
    if h.isnan().any():  # breaks the graph
        h = h.nan_to_num()
    return h.sum()


def program() -> None:
    compiled = torch.compile(loss, backend="aot_eager")
    weight = torch.ones(8, 8, requires_grad=True)
    compiled(torch.ones(4, 8), weight, 1.0).backward()
    compiled(torch.ones(6, 8), weight, 1.0).backward()  # another size
    with torch.no_grad():
        compiled(torch.ones(6, 8), weight, 1.0)  # another grad mode


# --8<-- [end:program]


def main() -> None:
    """Watch a small program."""
    print("==== program")
    stop = watch_compilations()
    program()
    stop()


if __name__ == "__main__":
    main()
