"""A trace of torch.profiler: its steps, its kernels, and the line of somebody's code behind each moment."""

import ast
import bisect
import functools
import gzip
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .lines import Line, is_library
from .losses import Place
from .subject import Refused

Spans = list[tuple[float, float]]  # of seconds: sorted, and none touches another

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
WANTED = (*ON_GPU, *CALLS, "cpu_op", "user_annotation", "python_function")
WRAPPERS = 4  # functions of PyTorch between a call in somebody's code and the function of that name
BACKWARD = "autograd::engine::evaluate_function"


@dataclass(frozen=True)
class Event:
    """What took a while, on the host or on the GPU; times in seconds."""

    name: str
    category: str
    start: float
    end: float
    thread: object = 0
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def span(self) -> tuple[float, float]:
        return self.start, self.end

    @property
    def length(self) -> float:
        return self.end - self.start


class Nested:
    """Events that lie in one another on each thread, such as calls."""

    def __init__(self, events: Iterable[Event]):
        self.of: dict[object, list[Event]] = defaultdict(list)
        for event in sorted(events, key=lambda event: (event.start, -event.end)):
            self.of[event.thread].append(event)
        self.starts = {thread: [event.start for event in events] for thread, events in self.of.items()}
        self.parents: dict[int, Event] = {}
        self.children: dict[int, list[Event]] = defaultdict(list)
        for events in self.of.values():
            open_: list[Event] = []
            for event in events:
                while open_ and open_[-1].end <= event.start:
                    open_.pop()
                if open_:
                    self.parents[id(event)] = open_[-1]
                    self.children[id(open_[-1])].append(event)
                open_.append(event)

    def around(self, thread: object, moment: float) -> Iterator[Event]:
        """What runs at a moment, the innermost first."""
        at = bisect.bisect_right(self.starts.get(thread, []), moment)
        event = self.of[thread][at - 1] if at else None
        while event is not None:
            if event.end >= moment:
                yield event
            event = self.parents.get(id(event))

    def outermost(self) -> list[Event]:
        return [event for events in self.of.values() for event in events if id(event) not in self.parents]


class Trace:
    """The events of one process, and how to find the line behind a moment."""

    def __init__(self, content: Mapping[str, Any], name: str):
        self.name, self.content = name, content
        events = list(events_of(content))
        self.marks = sorted(
            (event for event in events if re.match(r"ProfilerStep#", event.name) and event.category not in ON_GPU),
            key=lambda event: event.start,
        )
        start = self.marks[0].start if self.marks else -1.0
        self.kernels = [event for event in events if event.category in ON_GPU and event.end > start]
        self.calls = [event for event in events if event.category in CALLS and event.start >= start]
        self.named = Nested(
            event for event in events if event.category == "user_annotation" and event not in self.marks
        )
        ops = [event for event in events if event.category == "cpu_op"]
        self.ops, self.frames = Nested(ops), Nested(event for event in events if event.category == "python_function")
        self.orders: dict[tuple[int, str], dict[int, int]] = {}
        self.called: dict[tuple[int, int], set[str]] = {}
        self.by_sequence: dict[object, Event] = {}
        for event in ops:
            number = event.args.get("Sequence number", -1)
            if number >= 0 and not self.in_backward(event):
                self.by_sequence[number] = event  # the last to see a number is the one that took it
        if not ops and not self.kernels:
            raise Refused(f"{name} has no operation: was anything called while the profiler recorded?")

    @functools.cache  # noqa: B019  # a trace lives as long as the command
    def host(self, pattern: str) -> list[Event]:
        """What ran on the host under such a name, each moment once."""
        every = (event for nested in (self.named, self.ops) for events in nested.of.values() for event in events)
        return Nested(event for event in every if re.match(pattern, event.name)).outermost()

    @property
    def steps(self) -> int:
        return max(1, len(self.marks))

    @property
    def rank(self) -> int | None:
        """Of a distributed run: as the trace says, or as its name does."""
        info = self.content.get("distributedInfo") or {}
        named = re.search(r"rank[_-]?(\d+)", self.name)
        return info["rank"] if "rank" in info else int(named[1]) if named else None

    def in_backward(self, op: Event) -> bool:
        return any(BACKWARD in event.name for event in [op, *self.ops.around(op.thread, op.start)])

    def line_at(self, thread: object, moment: float) -> Line | None:
        """The innermost line that is not PyTorch's; of backward, the line whose forward it belongs to."""
        ops = list(self.ops.around(thread, moment))
        for op in ops:
            forward = self.by_sequence.get(op.args.get("Sequence number")) if BACKWARD in op.name else None
            if forward is not None:
                thread, moment = forward.thread, forward.start
                ops = list(self.ops.around(thread, moment))
                break
        for op in ops:  # as older traces tell it, and those of TorchScript
            if line := line_of_stack(op.args.get("Call stack", "")):
                return line
        frames: list[Event] = []
        for frame in self.frames.around(thread, moment):
            frames.insert(0, frame)
            if (line := line_of(frame.name)) is not None:
                return self.exact(line, frames, ops)
        return None

    def place_at(self, thread: object, moment: float) -> Place:
        """The line, or in a trace without stacks the outermost operation."""
        every = [op.name for op in self.ops.around(thread, moment)]
        return self.line_at(thread, moment) or (every[-1].removeprefix(f"{BACKWARD}: ") if every else None)

    def exact(self, line: Line, frames: Sequence[Event], ops: Sequence[Event]) -> Line:
        """A profiler writes where a function begins: the source tells which of its lines makes the call.

        Args:
            frames: the function's own, then what it called, then what that called.
        """
        own, *below = frames
        if below and is_object(below[0]):
            named, calls = "", self.called_in(own)
            sites = [site for site in call_sites(line) if site.called not in calls]
        else:
            operation = next((op.name for op in reversed(ops) if op.start >= own.start), "")
            names = [called_by(frame.name) for frame in below[:WRAPPERS]] if below else [operation]
            sites = next((found for name in names if name and (found := call_sites(line, name))), [])
            named = names[0]
        if len({site.line for site in sites}) > 1:  # told apart by their order, where each ran once
            order = self.order_in(own, named) if below else {}
            sure = len(order) == len(sites) and not any(site.maybe for site in sites)
            sites = [sites[order[id(below[0])]]] if sure else []
        return Line(line.file, sites[0].line, line.function) if sites else line

    def order_in(self, frame: Event, named: str) -> dict[int, int]:
        """The calls of one name, or of objects, that a function makes itself, by their order."""
        if (key := (id(frame), named)) not in self.orders:
            below = self.frames.children[id(frame)]
            alike = [one for one in below if (called_by(one.name) == named if named else is_object(one))]
            self.orders[key] = {id(one): number for number, one in enumerate(alike)}
        return self.orders[key]

    def called_in(self, frame: Event, deep: int = WRAPPERS) -> set[str]:
        """The names of what a function calls, itself or through a few others."""
        if (key := (id(frame), deep)) not in self.called:
            below = [one for one in self.frames.children[id(frame)] if not one.name.startswith(MODULE)] if deep else []
            below_them = (self.called_in(one, deep - 1) for one in below)
            self.called[key] = {called_by(one.name) for one in below}.union(*below_them)
        return self.called[key]


def is_object(frame: Event) -> bool:
    """Whether a frame is the call of a module or another object, of whose name the trace knows nothing."""
    return frame.name.startswith(MODULE) or called_by(frame.name) == "__call__"


def read_trace(path: Path) -> Trace | None:
    """A trace as export_chrome_trace writes it, packed with gzip or not; None if the file is something else."""
    raw = path.read_bytes()
    try:
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        content = json.loads(raw.decode("utf-8", "replace"))  # a profiler's names are not always UTF-8
    except (ValueError, OSError, EOFError):
        return None
    return Trace(content, path.name) if isinstance(content, dict) and "traceEvents" in content else None


def events_of(content: Mapping[str, Any]) -> Iterator[Event]:
    for event in content["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat", "").lower() in WANTED and "dur" in event:
            start, thread = event["ts"] * 1e-6, (event.get("pid"), event.get("tid"))
            end = start + event["dur"] * 1e-6
            yield Event(event["name"], event["cat"].lower(), start, end, thread, event.get("args", {}))


# ---- lines ----------------------------------------------------------------------------------------------------------

FRAME = re.compile(r"(.+)\((\d+)\): (\S+)$")
NOT_THEIRS = re.compile(r"(torch|triton|functorch|<)|.*torchinductor|.*<eval_with_key>")


def line_of(name: str) -> Line | None:
    """The line in a frame's name, if it is of somebody's own code; paths are short as sys.path makes them."""
    match = FRAME.match(name)
    if match is None:
        return None
    file, number, function = match.groups()
    top = re.split(r"[/\\]", file)[0].removesuffix(".py")
    if NOT_THEIRS.match(file) or (top in sys.stdlib_module_names and not os.path.exists(file)) or is_library(file):
        return None
    return Line(file, int(number), function)


def line_of_stack(stack: str) -> Line | None:
    """The innermost line of a "Call stack", where lines are exact."""
    lines = (line_of(frame.strip()) for frame in stack.split(";"))
    return next(filter(None, lines), None)


def called_by(name: str) -> str:
    """What a frame's name says was called, as the source spells it."""
    match = re.match(r"<built-in (?:method|function) (\w+)|.*: (\w+)$", name)
    return next(filter(None, match.groups()), "") if match and not name.startswith(MODULE) else ""


OPERATORS: dict[str, tuple[type, ...]] = {  # operations that the source writes without a call
    "aten::mul": (ast.Mult,), "aten::add": (ast.Add,), "aten::sub": (ast.Sub,), "aten::div": (ast.Div,),
    "aten::matmul": (ast.MatMult,), "aten::pow": (ast.Pow,), "aten::neg": (ast.USub,),
    "aten::is_nonzero": (ast.If, ast.While, ast.IfExp, ast.Assert), "aten::index": (ast.Subscript,),
}  # fmt: skip


MODULE = "nn.Module: "


@dataclass(frozen=True)
class Site:
    """A place that makes a call; `maybe` where a loop or a branch decides how often."""

    line: int
    called: str
    maybe: bool


@functools.cache
def call_sites(line: Line, called: str = "") -> list[Site]:
    """Where a function calls something, of this name or any, or writes an operation."""
    function, operators = function_at(line), OPERATORS.get(called)
    found = []
    for node, maybe in inside(function) if function else ():
        name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
        if operators and isinstance(node, (ast.expr, ast.stmt)) and isinstance(getattr(node, "op", node), operators):
            found.append(Site(node.lineno, called, maybe))
        elif name and name == (called or name):
            found.append(Site(node.func.end_lineno, name, maybe))  # type: ignore[attr-defined]
    return sorted(found, key=lambda site: site.line)


def function_at(line: Line) -> ast.AST | None:
    """A function by its name and a line in it; a frame that is open when recording begins has a line of its middle."""
    tree = parsed(line.file)
    if tree is None or line.function == "<module>":
        return tree
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name == line.function
        and min([node.lineno, *(one.lineno for one in node.decorator_list)])
        <= line.number
        <= (node.end_lineno or node.lineno)
    ]
    return found[-1] if found else None


@functools.cache
def parsed(file: str) -> ast.Module | None:
    try:
        return ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return None


def inside(function: ast.AST, maybe: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """The nodes of a function, but not of functions in it, and whether a loop or a branch is around them."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield node, maybe
            yield from inside(node, maybe or isinstance(node, BRANCHES))


BRANCHES = (ast.For, ast.While, ast.If, ast.IfExp, ast.BoolOp, ast.Try, ast.ListComp, ast.GeneratorExp, ast.DictComp)


# ---- spans of time --------------------------------------------------------------------------------------------------


def union(spans: Iterable[tuple[float, float]]) -> Spans:
    """The same moments, each once."""
    merged: Spans = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def without(spans: Spans, others: Spans) -> Spans:
    """The moments of the first that are in none of the second."""
    left: Spans = []
    ends = [end for _, end in others]
    for start, end in spans:
        at = bisect.bisect_right(ends, start)
        while at < len(others) and others[at][0] < end:
            if others[at][0] > start:
                left.append((start, others[at][0]))
            start = others[at][1]
            at += 1
        if start < end:
            left.append((start, end))
    return left


def seconds(spans: Spans) -> float:
    return sum(end - start for start, end in spans)
