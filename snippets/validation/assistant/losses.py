"""What a trace or a log loses: by cause, at which line, and the page that treats it."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from .lines import Line
from .report import WIDTH, address

Place = Line | str | None  # a line, else an operation of the trace, if one is known

DIAGNOSIS = "validation/diagnosis.md"
CAUSES = {  # by name: what happens, what to change, and the page
    "waiting": (
        "the host waited for the GPU, which is idle until the next launch",
        "keep numbers on the GPU, read them every 50 steps",
        f"{DIAGNOSIS}#waiting",
    ),
    "launching": (
        "the GPU is idle while the host launches small kernels",
        "torch.compile(mode='reduce-overhead'), or a larger batch",
        f"{DIAGNOSIS}#launching",
    ),
    "starting": (
        "the GPU is idle between the kernels of a CUDA graph",
        "larger kernels: fuse, or a larger batch",
        f"{DIAGNOSIS}#from-symptom-to-command",
    ),
    "python": (
        "nothing runs but Python",
        "move this work out of the step; py-spy names its lines",
        f"{DIAGNOSIS}#where-it-loses",
    ),
    "loading": (
        "nothing runs while the host waits for the DataLoader",
        "num_workers=, persistent_workers=True, cheaper samples",
        f"{DIAGNOSIS}#loading",
    ),
    "pageable": (
        "copies from memory that is not pinned hold the host and the GPU",
        "pin_memory=True in the loader, and non_blocking=True",
        f"{DIAGNOSIS}#copying",
    ),
    "copying": (
        "nothing runs but a copy between host and GPU",
        "send fewer bytes (uint8), or copy ahead on another stream",
        f"{DIAGNOSIS}#copying",
    ),
    "compiling": (
        "the compiler runs inside the step",
        "TORCH_LOGS=recompiles names the guard that failed",
        f"{DIAGNOSIS}#compiling",
    ),
    "network": (
        "NCCL runs, and no other kernel",
        "overlap it with backward: shard and prefetch block by block",
        f"{DIAGNOSIS}#where-it-loses",
    ),
    "rank": (
        "ranks wait in collectives for a slower one",
        "give the slow rank less to do, or speed up what it does more",
        f"{DIAGNOSIS}#where-it-loses",
    ),
    "memory": (
        "operations that nobody fused move bytes and compute little",
        "fuse them with torch.compile",
        f"{DIAGNOSIS}#memory",
    ),
    "optimizer": (
        "the optimizer updates with many small operations",
        "fused=True in its constructor",
        "compiler/training.md#optimizer",
    ),
    "fp32": (
        "float32 matmuls leave the tensor cores idle",
        "bf16, or torch.set_float32_matmul_precision('high')",
        f"{DIAGNOSIS}#matrix",
    ),
    "recompilation": (
        "a function is compiled again",
        "look the guard up in the page's table",
        "compiler/recompilation.md#what-the-log-says-and-what-ends-it",
    ),
    "limit": (
        "a function is past its limit of graphs, and runs eagerly",
        "fix the guard that fails, do not raise the limit",
        "compiler/recompilation.md#past-the-limit-silently-eager",
    ),
    "cuda-graph": (
        "no CUDA graph is recorded",
        "return a new tensor, or make the tensor a buffer",
        "compiler/cuda-graphs.md#skipped",
    ),
}
LEAST = 0.05  # of a step: what is less does not stand out
MOST = 3  # losses that are printed


@dataclass(frozen=True)
class Loss:
    """What one cause takes, and the line that takes most of it.

    Attributes:
        seconds: of a step of a trace, or of a whole log; nan where the file does not tell.
        share: of the step, or nan.
        at_line: seconds at the line.
        detail: what is known beside: a kernel's name, the guard that failed.
        times: how often, where that is counted.
    """

    cause: str
    seconds: float = math.nan
    share: float = math.nan
    line: Place = None
    at_line: float = math.nan
    detail: str = ""
    times: int = 0
    title: str = ""
    change: str = ""
    page: str = ""

    def __str__(self) -> str:
        title, change, page = CAUSES.get(self.cause, ("", "", ""))
        amounts = [
            "" if math.isnan(self.seconds) else f"{self.seconds * 1e3:.2f} ms",
            "" if math.isnan(self.share) else f"{self.share:.0%} of the step",
            f"{self.times} times" if self.times else "",
        ]
        head = f"{', '.join(filter(None, amounts))}: {self.title or title}"
        return "\n".join(
            [
                f"{head}{f' ({self.detail})' if self.detail else ''}"[: WIDTH - 3],
                f"     {self.place}"[:WIDTH].rstrip(),
                *self.advice(self.change or change, address(self.page or page)),
            ]
        )

    @staticmethod
    def advice(change: str, page: str) -> list[str]:
        """One row, or two where it would be too wide."""
        both = f"     {change}: {page}"
        return [both] if len(both) <= WIDTH else [f"     {change}"[:WIDTH], f"     {page}"]

    @property
    def place(self) -> str:
        """The line and its text; of several, how much of the time is the line's."""
        part = f"{self.at_line * 1e3:.2f} ms of it " if self.at_line < 0.95 * self.seconds else ""
        if not isinstance(self.line, Line):
            return f"{part}in {self.line or 'code that the file does not name'} (a trace with_stack=True has lines)"
        text, function = self.line.text, self.line.function
        if function and text.startswith(("def ", "async def ", "@")):
            return f"{part}in {function}, which begins at {self.line}"
        return f"{part}at {self.line}{f' in {function}' if function else ''}   {text}"


@dataclass(frozen=True)
class Reading:
    """What one file, or several of one run, say; the largest loss in front."""

    head: str
    losses: Sequence[Loss]
    tail: str = ""

    def __str__(self) -> str:
        rows = [textwrap.shorten(self.head, WIDTH, placeholder=" …")]
        rows += [f"{number}. {loss}" for number, loss in enumerate(self.losses[:MOST], 1)]
        if not self.losses:
            rows.append("nothing stands out")
        return "\n".join([*rows, *([self.tail[:WIDTH]] if self.tail else [])])
