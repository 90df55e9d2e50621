"""Which lines of source a kernel computes, and which kernels compute a line."""

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
import torch._functorch.config
import torch._inductor.config
import torch._inductor.debug


# --8<-- [start:provenance]
class Told(logging.Handler):
    """Keeps what torch.compile writes for tlparse: the contents of its artifacts, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.artifacts: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        name = getattr(record, "metadata", {}).get("artifact", {}).get("name", "")
        self.artifacts.append((name, getattr(record, "payload", None) or ""))


def lines_of_kernels(call: Callable[[], object]) -> list[dict[str, list[str]]]:
    """For each graph that the call compiles: the lines of source that each launch computes."""
    told, log = Told(), logging.getLogger("torch.__trace")
    log.addHandler(told)
    try:
        with (
            torch._inductor.config.patch({"trace.provenance_tracking_level": 1}),
            torch._inductor.debug.reset_provenance_globals(),  # else a backward also tells of those before it
            compiled_anew(),
        ):
            call()
    finally:
        log.removeHandler(told)
    kernels = [
        json.loads(text) for name, text in told.artifacts if name == "inductor_provenance_tracking_kernel_stack_traces"
    ]
    return [{kernel: sorted({place(trace) for trace in traces}) for kernel, traces in one.items()} for one in kernels]


def place(trace: str) -> str:
    """File, line and text of the innermost frame of a stack trace: `block.py:30: return x`."""
    file, number, text = re.findall(r'File "(.*)", line (\d+), in .*\n +(.*)', trace)[-1]
    return f"{Path(file).name}:{number}: {text}"


def kernels_of_lines(graphs: Iterable[dict[str, list[str]]]) -> dict[str, list[str]]:
    """The way back: for each line of source, the launches that compute some of it."""
    lines: dict[str, list[str]] = {}
    for graph in graphs:
        for kernel, places in graph.items():
            for line in places:
                lines.setdefault(line, []).append(kernel)
    return dict(sorted(lines.items()))


# --8<-- [end:provenance]
@contextlib.contextmanager
def compiled_anew() -> Iterator[None]:
    """Forget what was compiled, and find nothing in a cache."""
    torch.compiler.reset()
    with (
        torch._inductor.config.patch(fx_graph_cache=False, compile_threads=1),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield
