"""What torch.compile would make of a module: its graphs, what breaks and repeats them, and what capture changes.

Nothing is compiled: Dynamo captures, and the graphs run as they are. What the caller compiled before stays compiled."""

import contextlib
import functools
import inspect
import linecache
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo import convert_frame, eval_frame

from .calls import kind_of_mask, named_leaves
from .lines import Line, is_library, lines_that_store
from .results import Held, versions
from .settings import nothing_changed, quiet, seeded
from .subject import Subject, detached, fresh_inputs, one_line, original

BREAKS = "torch._dynamo.symbolic_convert.__graph_breaks"
RECOMPILES = "torch._dynamo.guards.__recompiles"
SKIPPED = "Skipping the function and falling back to eager"


@dataclass(frozen=True)
class Break:
    """A place where Dynamo gives up: one graph ends before it. Where `skipped`, the whole function runs uncompiled."""

    line: Line
    reason: str
    skipped: bool
    by_size: bool = False  # only once sizes have changed


@dataclass(frozen=True)
class Recompiled:
    """A graph that was thrown away, or made once more, and the condition that had failed."""

    line: Line
    reason: str
    causes: tuple[Line, ...] = ()  # what wrote the attribute that the condition reads
    by_size: bool = False  # one of the graphs that were there would have served, but for a size
    marked: bool = False  # none more is made once the size is marked dynamic


@dataclass(frozen=True)
class Mask:
    """The mask of an attention in a captured graph: "causal", "nothing" or "data"."""

    line: Line
    kind: str


@dataclass
class Captured:
    """What Dynamo made of a module."""

    graphs: list[int] = field(default_factory=list)  # operations in each, at the first call
    breaks: list[Break] = field(default_factory=list)
    recompiled: list[Recompiled] = field(default_factory=list)
    masks: list[Mask] = field(default_factory=list)
    sizes: int = 1  # how many sizes of the inputs were tried
    repeats: bool = False  # a call with the same sizes makes another graph
    error: str = ""
    outputs: list[Tensor] = field(default_factory=list)  # of the first call


MOST_RUNS = 4  # of somebody's forward, before the report, but for those that show what leaks


# --8<-- [start:capture]
def capture(subject: Subject, sizes: Sequence[tuple[Subject, Subject]] = ()) -> Captured:
    """Capture a module for its inputs, then call it with inputs of other sizes, or twice more with the same.

    A module that remembers something of the size of its inputs may not take another: then a fresh copy has to.

    Args:
        sizes: ways to change sizes, of which the first counts that the module takes. At the first call with other
            sizes one more graph is due, which then serves all; at the second, none.
    """
    captured, capturing = Captured(), Capturing(subject)
    with nothing_changed(), quiet(), logged(BREAKS) as breaks, logged(RECOMPILES) as recompiled, cleaned():
        try:
            captured.outputs = capturing.call(subject, recompiled)
            always = {one.line for one in breaks_of(breaks)}
            first = len(capturing.graphs)
            capturing.call_again(recompiled, captured)
            turns = next((pair for pair in sizes if capturing.takes(pair[0], recompiled, captured)), None)
            for turn in turns[1:] if turns else (subject, subject):
                capturing.takes(turn, recompiled, captured, changed=False)
            captured.sizes = 1 + len({id(turn) for turn in capturing.taken} - {id(subject)})
        except Exception as error:  # noqa: BLE001  # Dynamo and backends raise many kinds
            captured.error, first = f"{type(error).__name__}: {one_line(error)}", len(capturing.graphs)
            always = {one.line for one in breaks_of(breaks)}
        captured.graphs, captured.masks = capturing.graphs[:first], capturing.masks
        captured.breaks = [replace(one, by_size=one.line not in always) for one in breaks_of(breaks)]
        tried = [subject, *capturing.taken]
        captured.recompiled = [
            caused(of_widths(specialised(one, tried, captured.breaks), subject.module), subject.module)
            for one in captured.recompiled[:4]
        ]
    return captured


class Capturing:
    """A copy of a module that Dynamo captures, and what came of its calls."""

    def __init__(self, subject: Subject):
        self.subject, self.graphs, self.masks = subject, [], []
        self.taken: list[Subject] = []
        self.twin = subject.fresh().module
        self.before, self.backend = versions(self.twin), self.keep
        self.dry = False  # whether graphs are made, but do not run

    def keep(self, graph: fx.GraphModule, example_inputs: list[Tensor]) -> Callable:
        self.graphs.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
        run = watched(graph, self.masks)
        return lambda *given: not_run() if self.dry else run(*given)

    def call_again(self, recompiled: list[str], captured: Captured) -> None:
        """What the same call captures once more, because of what the first has left; it ends at its first graph."""
        if not self.graphs or versions(self.twin) == self.before:
            return
        self.dry = True
        try:
            self.call(self.subject, recompiled)
        except Exception:  # noqa: BLE001  # the graph has not run
            self.subject.runs.count -= 1
        self.dry = False
        captured.recompiled += of_values(recompiled_of(recompiled), self.subject.module)
        captured.repeats = bool(captured.recompiled)

    def call(self, turn: Subject, recompiled: list[str]) -> list[Tensor]:
        seeded()
        recompiled.clear()
        compiled = torch.compile(self.twin, backend=self.backend)
        inputs, named = fresh_inputs(turn.inputs, turn.named)
        return detached(replace(turn, module=compiled, inputs=inputs, named=named)())  # type: ignore[arg-type]

    def takes(self, turn: Subject, recompiled: list[str], captured: Captured, changed: bool = True) -> bool:
        """Whether the module takes a call; what that captured once more is noted."""
        if self.subject.runs.count - self.subject.runs.more >= MOST_RUNS:
            return False
        if turn is not self.subject and self.remembers_sizes:
            self.twin = self.subject.fresh().module
        try:
            self.call(turn, recompiled)
        except Exception:  # noqa: BLE001  # a size that does not fit raises anything
            return False
        self.taken.append(turn)
        found = of_values(unexpected(recompiled_of(recompiled), changed), self.subject.module)
        captured.recompiled += found
        captured.repeats |= any(not re.search(r"size|stride|shape", one.reason) for one in found)
        return True

    @functools.cached_property
    def remembers_sizes(self) -> bool:
        """Whether the first call left a tensor, such as a cache, that a call with other sizes may not fit."""
        left = [one for name, one in versions(self.twin) if isinstance(one, Held) and (name, one) not in self.before]
        return any(one.tensor.dim() > 1 for one in left)


# --8<-- [end:capture]


@contextlib.contextmanager
def cleaned() -> Iterator[None]:
    """Allow many graphs for a function, warn of nothing, and forget them afterwards, but not those of the caller."""
    trackers = convert_frame.input_codes, convert_frame.output_codes
    loggers = [logging.getLogger(name) for name in {"torch", *torch._logging._internal.log_registry.get_log_qnames()}]
    handlers = [logger.handlers for logger in loggers]
    for logger in loggers:  # a handler of any kind turns the structured trace on, which costs as much as capture itself
        logger.handlers = [] if logger.name == "torch.__trace" else [logging.NullHandler()]
    before = {id(reference()) for tracker in trackers for reference in tracker.seen}
    patched = {"recompile_limit": 64, "accumulated_recompile_limit": 512, "suppress_errors": False}
    try:
        with torch._dynamo.config.patch(**patched):
            yield
    finally:
        for logger, own in zip(loggers, handlers, strict=True):
            logger.handlers = own
        for tracker in trackers:
            for reference in list(tracker.seen):
                if (code := reference()) is not None and id(code) not in before:
                    eval_frame.reset_code(code)
                    tracker.seen.remove(reference)  # else the next time it would count as the caller's
                    tracker.seen_ids.discard(id(code))


@contextlib.contextmanager
def logged(name: str) -> Iterator[list[str]]:
    """What Dynamo would print to one of its logs under TORCH_LOGS, while it prints nothing."""
    logger, entries = logging.getLogger(name), []
    handler = logging.Handler()
    handler.emit = lambda record: entries.append(record.getMessage())  # type: ignore[method-assign]
    artifacts = torch._logging._internal.log_state.artifact_names
    added = {name.rpartition("__")[2]} - artifacts
    before = logger.level, logger.propagate, logger.handlers
    logger.level, logger.propagate, logger.handlers = logging.DEBUG, False, [handler]
    logger.manager._clear_cache()  # type: ignore[attr-defined]  # loggers remember which levels are on
    artifacts |= added
    try:
        yield entries
    finally:
        artifacts -= added
        logger.level, logger.propagate, logger.handlers = before
        logger.manager._clear_cache()  # type: ignore[attr-defined]


BREAK = re.compile(r"in user code at (.+):(\d+)\nGraph Break Reason: (.*)", re.DOTALL)
FRAME = re.compile(r'File "([^"]+)", line (\d+)(?:, in (?:torch_dynamo_resume_in_)?(\S+?)(?:_at_\d+)?$)?', re.MULTILINE)
AROUND = ("Encountered graph break when attempting", "Failed to handle graph break gracefully", "*** While")


def breaks_of(entries: list[str]) -> list[Break]:
    """The breaks in Dynamo's log, each once: the callers of a function that breaks are logged as well."""
    found: dict[Line, Break] = {}
    for entry in entries:
        match = BREAK.search(entry)
        if match is None:
            continue
        file, number, text = match.groups()
        line = author_line(entry.partition("User code traceback:")[2]) or Line(file, int(number))
        duplicate = "user stack suppressed" in entry.split("\n", 1)[0]
        if not (duplicate and found) and line not in found:
            found[line] = Break(line, cause(text), SKIPPED in entry)
    return list(found.values())


def author_line(traceback: str) -> Line | None:
    """The innermost line of a traceback that is not PyTorch's."""
    frames = [Line(file, int(number), function or "") for file, number, function in FRAME.findall(traceback)]
    frames = [frame for frame in frames if not is_library(frame.file)]
    return frames[-1] if frames else None


def cause(text: str) -> str:
    """The line that names the cause: the one to search for."""
    if symbolic := re.search(r"argument '\w+' must be \w+, not Sym\w+", text):
        return symbolic[0]
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in lines if line and not line.startswith(AROUND)), "")


def recompiled_of(entries: list[str]) -> list[Recompiled]:
    """The recompilations in Dynamo's log, by the condition of the newest graph that failed."""
    found = []
    for entry in entries:
        head, _, failures = entry.partition("guard failure(s):")
        file, number = re.search(r" in (\S.*):(\d+)$", head.splitlines()[0]).groups()  # type: ignore[union-attr]
        first = re.split(r"\n\s*- \d+/\d+: ", failures)[1] if re.search(r"- \d+/\d+: ", failures) else failures
        line = author_line(first) or named_line(first, file) or Line(file, int(number))
        reason = re.split(r"\s+#|\n|\s+\(HINT", first.strip())[0].strip()
        found.append(Recompiled(line, reason, by_size=bool(re.search(r"tensor .* (size|stride) mismatch", failures))))
    return found


def named_line(reason: str, file: str) -> Line | None:
    """The line that a guard's comment names; of a long path it has the end only."""
    match = re.search(r"# (\S+):(\d+) in (\w+)", reason)
    return Line(file, int(match[2]), match[3]) if match and file.endswith(match[1]) else None


def specialised(recompiled: Recompiled, turns: list[Subject], breaks: list[Break]) -> Recompiled:
    """For a size that stays constant: the line that made it so, which Dynamo tells once the size is marked dynamic."""
    match = re.search(r"tensor '(.+)' size mismatch at index (\d+)\. expected (\d+)", recompiled.reason)
    if match is None:
        return recompiled
    name, dim, size = match[1], int(match[2]), int(match[3])
    for turn in turns:
        twin = turn.fresh()
        tensors = {
            way: tensor for way, tensor in tensors_by_name(twin) if tensor.dim() > dim and tensor.shape[dim] == size
        }
        for tensor in tensors.values():
            torch._dynamo.mark_dynamic(tensor, dim)
        reason = f"dimension {dim} of {' and '.join(tensors)}: {sizes_of(turns, dim, next(iter(tensors), ''))}"
        try:
            if tensors:
                torch.compile(twin.module, backend=lambda graph, inputs: not_run)(*twin.inputs, **twin.named)
        except Exception as error:  # noqa: BLE001  # a ConstraintViolationError, from wherever it comes
            if (line := author_line(str(error).rpartition("User stack:")[2])) is not None:
                return replace(recompiled, line=line, reason=f"{reason}; mark_dynamic raises")
            if str(error) == NOT_RUN and name in tensors and not breaks:
                return replace(recompiled, reason=reason, marked=True)
    return replace(recompiled, line=line_with_size(name, recompiled.line) or recompiled.line)


def of_widths(recompiled: Recompiled, module: nn.Module) -> Recompiled:
    """What no size of an input explains, since layers of several widths share a function, in these words."""
    match = re.search(r"size mismatch at index \d+\. expected (\d+), actual (\d+)", recompiled.reason)
    sizes = {int(one) for one in match.groups()} if match else set()
    widths = {length for one in original(module).parameters() for length in one.shape}
    if not match or not sizes <= widths or max(sizes) - min(sizes) <= NEAR:
        return recompiled
    return replace(recompiled, reason=f"layers of sizes {match[1]} and {match[2]} share the function")


NEAR = 2  # that the sizes of inputs are changed by


def tensors_by_name(turn: Subject) -> Iterator[tuple[str, Tensor]]:
    """The inputs of a call, as `forward` names them."""
    names = [*inspect.signature(original(turn.module).forward).parameters]
    names += [f"input {number}" for number in range(len(names), len(turn.inputs))]
    for name, value in (*zip(names, turn.inputs, strict=False), *turn.named.items()):
        yield from ((way, leaf) for way, leaf in named_leaves(value, name) if isinstance(leaf, Tensor))


def sizes_of(turns: list[Subject], dim: int, name: str) -> str:
    """How long a dimension of an input was in each call: "48, then 47"."""
    found = [tensor.shape[dim] for turn in turns for way, tensor in tensors_by_name(turn) if way == name]
    return ", then ".join(map(str, dict.fromkeys(found)))


def line_with_size(name: str, line: Line) -> Line | None:
    """Behind a graph break, where Dynamo names none: the next line of the function that loops over or asks for it."""
    asks = re.compile(rf"\b(for|while)\b.*\b{name}\b|\blen\({name}\)|\b{name}\.(shape|size)\b")
    for number, text in enumerate(linecache.getlines(line.file)[line.number :], line.number + 1):
        if re.match(r"\s*(def|class) ", text):
            return None
        if asks.search(text):
            return Line(line.file, number, line.function)
    return None


def not_run(*inputs: Any) -> Any:
    """Instead of a graph: Dynamo has told by then what it makes a constant of."""
    raise RuntimeError(NOT_RUN)


NOT_RUN = "no need to run"


def caused(recompiled: Recompiled, module: nn.Module) -> Recompiled:
    """For an attribute that has another value: the lines that write to it."""
    match = re.search(r"\.(\w+) == |\.(\w+)\) == \d+$", recompiled.reason)
    name = (match[1] or match[2]) if match else ""
    parts = [part for part in original(module).modules() if name and name in vars(part)]
    lines = (line for part in parts for line in lines_that_store(part, name))
    return replace(recompiled, causes=tuple(dict.fromkeys(lines)))


def unexpected(recompiled: list[Recompiled], changed: bool) -> list[Recompiled]:
    """Those that dynamic shapes do not explain: at a size that changes for the first time, one graph more is due."""
    return [one for one in recompiled if not (changed and (one.by_size or NUMBER.fullmatch(one.reason)))]


def of_values(recompiled: list[Recompiled], module: nn.Module) -> list[Recompiled]:
    """Those of values that change; not of layers that share a function and differ in a number that nobody changes.

    Behind a graph break each layer's function is captured by itself, and layers differ in what they are given, too.
    """

    def of_layers(one: Recompiled) -> bool:
        match = re.fullmatch(r"self\.(\w+) == .*", one.reason)
        parts = [part for part in original(module).modules() if match and match[1] in vars(part)]
        differ = len({repr(vars(part)[match[1]]) for part in parts if match}) > 1
        return (differ and not caused(one, module).causes) or bool(OF_LAYERS.match(one.reason))

    return [one for one in recompiled if not of_layers(one)]


OF_LAYERS = re.compile(r"tensor '\w+' requires_grad mismatch|___check_type_id\(self,")
NUMBER = re.compile(r"\w+ == -?\d+")  # of a part behind a graph break, whose numbers become dynamic as sizes do


def watched(graph: fx.GraphModule, masks: list[Mask]) -> Callable:
    """The graph, and while it runs a look at the masks that capture made."""
    if not any(map(is_attention, graph.graph.nodes)):
        return graph.forward

    class Watch(fx.Interpreter):
        def run_node(self, node: fx.Node) -> Any:
            if is_attention(node):
                args, kwargs = self.fetch_args_kwargs_from_env(node)
                mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
                line = author_line(node.meta.get("stack_trace") or "")
                if mask is not None and line is not None:
                    masks.append(Mask(line, kind_of_mask(mask)))
            return super().run_node(node)

    return lambda *inputs: Watch(graph).run(*inputs)


def is_attention(node: fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "scaled_dot_product_attention"
