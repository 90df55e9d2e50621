"""What a benchmark case says: which points to measure, and how to run each variant at one of them.

A case file `tests/benchmarks/<track>/<name>.py` has `points`, `prepare` and one `CASE`. The runner builds each variant,
checks it against float64, and only then times all of them side by side.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, NoReturn

import torch

from snippets.validation.timing import Call, Timing

Results = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Point:
    """One place of the published grid.

    Attributes:
        shape: named sizes, in the order in which they are shown: {"rows": 32768, "columns": 4096}. Nothing but sizes.
        dtype: "bfloat16", "float16", "float32", or "float8_e4m3fn" for a product of matrices of it.
        direction: "forward", "backward" or "both" (a step: forward and backward in one call).
        modes: how to time; the first is what a page means that names no clock. On a GPU any of "device" (GPU time of
            one call, cold L2), "calls" (wall clock of back-to-back calls), "graph" (GPU time of a CUDA graph's replay,
            cold L2; not for "backward" alone, which runs on the forward's stream), "burst", "sustained"; a CPU has
            "calls" only.
        variants: which variants to build here; all if None. For those that are slow to build.
        part: what runs, in words, where a case measures several things: "gelu"; empty where it measures one.
        name: how pages call it, where they do: "typical backward".
        shown: whether a page shows it. Others are measured on request: `--all`.
    """

    shape: Mapping[str, int]
    dtype: str
    direction: str = "forward"
    modes: tuple[str, ...] = ("device",)
    variants: tuple[str, ...] | None = None
    part: str = ""
    name: str = ""
    shown: bool = True


@dataclass(frozen=True)
class Variant:
    """One way to compute the case.

    Attributes:
        build: compiles what needs compiling and returns the call to time. It may raise: ImportError where a peer is not
            installed, anything else where it does not support the point; either is recorded with its message.
        results: what the call computes, by name ("output", "x.grad", ...), from what the call returned. Every call
            writes all of them anew: before a graph's replay is checked they are filled with NaN.
        binaries: for kernels of ours: the compiled Triton kernels by function name, asked for after one call, for their
            hashes, registers and spills.
        timer: where the way of timing is the subject: times the call instead of `measure`, by itself and not
            interleaved, in each of the point's modes. The workload then states no bytes: a wrong time is no bandwidth.
        refresh: puts back the inputs that a call overwrites. It is not timed.
        chooses_by_timing: whether building it times alternatives. Nothing else uses the GPU meanwhile.
    """

    build: Callable[[], Call]
    results: Callable[[object], Results] = lambda returned: {"output": returned}  # type: ignore[dict-item]
    binaries: Callable[[], Mapping[str, Any]] | None = None
    timer: Callable[[Call, torch.device], Timing] | None = None
    refresh: Call | None = None
    chooses_by_timing: bool = False


@dataclass(frozen=True)
class Workload:
    """A case at one point: inputs made, nothing compiled yet.

    Attributes:
        variants: by id: those of docs/theme/palette.json ("eager", "compile", "ours", ...), and those that the case
            declares in its LABELS, with what they are called and their role, which has a colour.
        baseline: id of the variant whose error sets the bound: the plain PyTorch op in the same dtype. Where it fails,
            nothing is timed at the point.
        reference: the same results in float64, by name.
        bytes_read, bytes_written: the fewest bytes that this direction must move, by formula.
        flops: floating-point operations, by formula.
        mix: the traffic mix whose ceiling applies: "read", "copy" or "triad" (two reads per write).
        largest_summands: by result name, where a result is a sum whose terms cancel (see equivalence.compare).
        wrong: results that the check must refuse, by what is wrong with them ("zero except at the target"), made from a
            copy of the baseline's. At least three; where one passes, nothing is timed. A test tries them at the shapes
            that the case declares in its check_at.
    """

    variants: Mapping[str, Variant]
    baseline: str
    reference: Callable[[], Results]
    bytes_read: int
    bytes_written: int
    flops: int
    mix: str = "copy"
    largest_summands: Mapping[str, float] = field(default_factory=dict)
    wrong: Mapping[str, Callable[[Results], Results]] = field(default_factory=dict)


def of_the_file(*_: object) -> NoReturn:
    """Stands for the case file's own `points` or `prepare`, until the runner loads the case."""
    raise NotImplementedError


@dataclass(frozen=True)
class Case:
    """What is measured for one source file.

    Attributes:
        question: one line, shown by `--list`.
        check_at: by directions, small shapes at which tests try its wrong results, with the part that runs: {"forward
            both": [{"part": "gelu", "rows": 64}]}. One for each way in which the case makes its inputs.
        points: the grid for a device.
        prepare: makes the inputs at a point. What it can reach is what a row measures (functions.py).
        name: as the runner calls it, by its file's path: "kernels/rms-norm".
    """

    question: str
    check_at: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    points: Callable[[torch.device], Iterable[Point]] = of_the_file
    prepare: Callable[[Point, torch.device], Workload] = of_the_file
    name: str = ""

    def checked(self) -> Iterator[Point]:
        """The points that `check_at` says, in fp32."""
        for directions, shapes in self.check_at.items():
            for at in shapes:
                shape = {name: size for name, size in at.items() if name != "part"}
                for direction in directions.split():
                    yield Point(shape, "float32", direction, part=at.get("part", ""))


def of_module(module: ModuleType) -> Case:
    """The `CASE` of a case file, with its name and with the file's functions."""
    own = {each: getattr(module, each) for each in ("points", "prepare") if getattr(module.CASE, each) is of_the_file}
    return replace(module.CASE, name="/".join(module.__name__.split(".")[2:]).replace("_", "-"), **own)
