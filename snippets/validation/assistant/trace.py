"""The record of one forward and backward of a module, and ways through its graph of calls and tensors."""

import contextlib
import functools
import weakref
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from .allocator import Allocated
from .calls import Call, Calls, Derivative, Ops, Recorder, Value, bytes_of, leaves_of, run_recorded, stored, tensors_of
from .leaks import Containers, Leak, leaks
from .lines import Line, is_library, lines_that_store
from .names import NUMBERS, PASSED
from .settings import nothing_changed, quiet
from .subject import Refused, Subject, detached, differentiate, loss_of, refusing
from .surroundings import file_of


@dataclass(frozen=True)
class Kept:
    """A tensor that was kept or alive: where it was made, and by what."""

    line: Line
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int
    made_by: str


# of backward: in place, unless a mode records them
COPIED = {"add", "index_add", "index_put", "scatter", "scatter_add"}
UNMEASURED = "the peak counts tensors only, none of the memory inside operations: no allocator could be asked"


class Memory(TorchDispatchMode):
    """Counts the bytes that are alive after each operation, and remembers what autograd keeps."""

    def __init__(self, twin: Subject, calls: Calls | None = None):
        super().__init__()
        tensors = (*twin.module.parameters(), *twin.module.buffers(), *tensors_of((twin.inputs, twin.named)))
        self.known = {tensor.untyped_storage()._cdata for tensor in tensors if tensor.layout == torch.strided}
        self.calls = calls
        self.alive: dict[int, Kept] = {}
        self.now = self.peak = 0
        self.copied: dict[str, int] = {}  # by operation of backward: the most bytes alive after it
        self.saved: dict[int, Kept] = {}
        self.cycles: dict[Line, None] = {}
        self.contexts: list[tuple[type, tuple[Tensor, ...]]] = []  # by a function with a backward of its own
        self.watched: list[weakref.finalize] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result, name = function(*args, **(kwargs or {})), function.overloadpacket.__name__
        for tensor in tensors_of(result):
            self.made(tensor, name)
        self.peak = max(self.peak, self.now)
        if name in COPIED and torch._C._current_autograd_node() is not None:
            self.copied[name] = max(self.copied.get(name, 0), self.now)
        return result

    def made(self, tensor: Tensor, name: str) -> None:
        if tensor.layout != torch.strided or isinstance(tensor, FakeTensor):
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.alive or key in self.known:
            return
        call = self.calls.current if self.calls else None
        line = call.line if call and call.stack else Line("backward", 0)
        self.alive[key] = Kept(line, tuple(tensor.shape), tensor.dtype, storage.nbytes(), name)
        self.now += storage.nbytes()
        self.watched.append(weakref.finalize(storage, self.freed, key))

    def freed(self, key: int) -> None:
        kept = self.alive.pop(key, None)
        self.now -= kept.bytes if kept else 0

    def keep(self, tensor: Tensor) -> Tensor:
        """Called with each tensor that autograd saves for backward."""
        key = tensor.untyped_storage()._cdata if tensor.layout == torch.strided else None
        if key in self.alive:
            self.saved.setdefault(key, self.alive[key])
        return tensor

    def keep_of_contexts(self, loss: Tensor | None) -> None:
        """Keep also what a torch.autograd.Function stores in its `ctx` under a name of its own."""
        waiting, seen = [loss.grad_fn if loss is not None else None], {None}
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting += [further for further, _ in node.next_functions]
                own = [*tensors_of([getattr(node, "saved_tensors", ()), *getattr(node, "__dict__", {}).values()])]
                if own and hasattr(node, "_forward_cls"):
                    self.contexts.append((node._forward_cls, tuple(own)))
                for name, value in getattr(node, "__dict__", {}).items():
                    for tensor in tensors_of(value):
                        self.keep(tensor)
                        if tensor.grad_fn is node:
                            self.cycles |= dict.fromkeys(lines_that_store(node._forward_cls, name))

    def limits(self, measured: bool) -> Iterator[str]:
        """Where the peak may differ from that of a run that nobody records."""
        if not measured:
            yield UNMEASURED
        near = sorted(name for name, most in self.copied.items() if most > 0.95 * self.peak)
        if near:
            yield f"the peak may be too high: while it is recorded, backward copies in {', '.join(near)}"

    def end(self) -> None:
        for watched in self.watched:
            watched.detach()


def saved_by_functions(memory: Memory, recorder: Recorder) -> list[tuple[type, tuple[Value, ...]]]:
    """What the calls of each torch.autograd.Function save. An input comes back as another tensor of the same memory."""
    places: dict[tuple, Value] = {}
    for tensor, value in recorder.values.items() if memory.contexts else ():
        if tensor.layout == torch.strided:
            places.setdefault(place_of(tensor), value)
    found = []
    for kind, own in ((kind, own) for kind, own in memory.contexts if not is_library(file_of(kind))):
        values = (recorder.values[one] if one in recorder.values else places.get(place_of(one)) for one in own)
        found.append((kind, tuple(one for one in values if one is not None)))
    return found


def place_of(tensor: Tensor) -> tuple:
    if tensor.layout != torch.strided:
        return ()
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def stored_graphs(module: nn.Module) -> list[Line]:
    """The lines of `forward` that store a tensor with its graph in the module, where it stays after the call."""
    lines = []
    for part in module.modules():
        for name, value in {**vars(part), **part._buffers}.items():
            if name.startswith("_") or not any(one.grad_fn is not None for one in tensors_of(stored(value))):
                continue
            lines += lines_that_store(part, name)
    return lines


@dataclass
class Trace:
    """All that was seen of one module."""

    calls: list[Call]
    saved: list[Kept]  # largest first
    peak: int  # bytes allocated in the step and in use at once
    parameters: int  # bytes
    held: list[Line]  # where the module stores a result that holds on to its graph
    outputs: list[Tensor] = field(default_factory=list)
    skipped: tuple[str, ...] = ()  # what could not be recorded, and why
    backward: bool = False  # whether there was one
    training: bool = True  # whether the module is in training mode
    returned: frozenset[int] = frozenset()  # the values that the module gives back
    twins: dict[int, int] = field(default_factory=dict)  # by a buffer's value: the first buffer with its numbers
    derivatives: tuple[Derivative, ...] = ()
    numbers: frozenset[int] = frozenset()  # the whole numbers among the inputs, such as those of a list
    leaks: tuple[Leak, ...] = ()
    contexts: tuple[tuple[type, tuple[Value, ...]], ...] = ()  # by a torch.autograd.Function: what one call of it saves
    cycles: tuple[Line, ...] = ()  # where a torch.autograd.Function stores its own result
    known: dict[str, Any] = field(default_factory=dict)  # what finders have computed of it

    @functools.cached_property
    def makers(self) -> dict[int, Call]:
        """By the number of a value: the call that made it."""
        return {value.id: call for call in self.calls for value in call.outputs}

    @functools.cached_property
    def users(self) -> dict[int, list[Call]]:
        """By the number of a value: the calls that took it."""
        users: dict[int, list[Call]] = defaultdict(list)
        for call in self.calls:
            for number in dict.fromkeys(value.id for value in call.inputs):
                users[number].append(call)
        return users

    @functools.cached_property
    def kernels(self) -> int:
        return sum(call.kernels for call in self.calls)

    @functools.cached_property
    def first_read(self) -> int | None:
        """The first call by which the host reads numbers, or, several times at one line, what is true.

        What is made after it may depend on values.
        """
        often = Counter(call.line for call in self.calls if call.name == "__bool__")
        reads = (
            call for call in self.calls if call.name in NUMBERS and (call.name != "__bool__" or often[call.line] > 1)
        )
        return next((call.index for call in reads if self.read_of_data(call)), None)

    def read_of_data(self, call: Call) -> bool:
        """Whether a call reads anything that was not made of sizes in one step."""
        makers = [self.made_by(one) for one in call.inputs]
        return any(maker is None or maker.inputs for maker in makers)

    @functools.cached_property
    def loops(self) -> dict[tuple[Line, int], list[list[Call]]]:
        """By a line of a function's activation: the calls under it that were made eight times or more, in groups."""
        groups: dict[tuple, list[Call]] = defaultdict(list)
        for call in self.calls:
            for depth, line in enumerate(call.stack):
                inner = tuple(
                    (each.file, each.function, at)
                    for each, (_, at) in zip(call.stack[depth:], call.where[depth:], strict=True)
                )
                groups[line, call.where[depth][0], inner, call.name].append(call)
        loops: dict[tuple[Line, int], list[list[Call]]] = defaultdict(list)
        for (line, activation, _, _), calls in groups.items():
            loops[line, activation].append(calls)
        return loops

    # ---- ways through the graph of calls ----------------------------------------------------------------------------

    @functools.cached_property
    def eager(self) -> list[Call]:
        """The calls that nobody has compiled yet."""
        return [call for call in self.calls if "compile" not in call.inside]

    def root(self, value: Value) -> Value:
        """What a value is a view or a cast of."""
        call = self.makers.get(value.id)
        while call is not None and call.name in PASSED - {"cat"} and call.inputs:
            value = call.inputs[0]
            call = self.makers.get(value.id)
        return value

    def made_by(self, value: Value) -> Call | None:
        """The call that computed a value, through views and casts."""
        return self.makers.get(self.root(value).id)

    def past(self, value: Value, through: Iterable[str], limit: int = 200) -> list[Call]:
        """The calls that use a value in the end, where some kinds of calls only pass it on."""
        through, found, seen, todo = frozenset(through), [], set(), [value]
        while todo and len(seen) < limit:
            for user in self.users[todo.pop().id]:
                if user.index in seen:
                    continue
                seen.add(user.index)
                if user.name in through:
                    todo += user.outputs
                else:
                    found.append(user)
        return sorted(found, key=lambda call: call.index)

    def gives_back(self, value: Value, through: Iterable[str]) -> bool:
        """Whether the module returns a value, as it is or past some kinds of calls."""
        through = frozenset(through)
        later = (one for user in self.users[value.id] if user.name in through for one in user.outputs)
        return value.id in self.returned or any(self.gives_back(one, through) for one in later)

    def between(self, first: Call, last: Call) -> list[Call]:
        """The calls on a way from one call to another."""
        after: dict[int, Call] = {}
        todo = list(first.outputs)
        while todo:
            for user in self.users[todo.pop().id]:
                if user.index not in after and user.index <= last.index:
                    after[user.index] = user
                    todo += user.outputs
        before, waiting = set(), [last]
        while waiting:
            for value in waiting.pop().inputs:
                maker = self.makers.get(value.id)
                if maker is not None and maker.index not in before and maker.index > first.index:
                    before.add(maker.index)
                    waiting.append(maker)
        return [after[index] for index in sorted(before & after.keys())]


def traced(subject: Subject) -> Trace:
    """The record of one step, of a copy: of all of it, or of what can be recorded.

    Raises:
        Refused: the module raises also where nothing is recorded.
    """
    skipped = []
    for modes in RECORDS:
        try:
            with nothing_changed(), quiet(), refusing(subject.name):
                trace = record(subject.fresh(), modes)
                return replace(trace, skipped=(*skipped, *trace.skipped))
        except Refused as error:
            if modes == RECORDS[-1] or "out of memory" in str(error):
                raise
            left_out = " and ".join(modes - RECORDS[RECORDS.index(modes) + 1])
            skipped.append(f"{NO_RECORD} {left_out}: {error}")
    raise AssertionError


NO_RECORD = "no record of"
UNWEIGHED = f"{NO_RECORD} memory"
RECORDS = ({"memory", "calls"}, {"calls"}, set())  # what a run records; where it cannot, the next tries with less


def equal_buffers(recorder: Recorder, module: nn.Module) -> dict[int, int]:
    """Buffers with the same numbers, such as the frequencies that each layer makes for itself."""
    first: list[Tensor] = []
    twins = {}
    for one in (each for each in module.buffers() if 0 < each.numel() <= 2**16 and each.layout == torch.strided):
        like = (each for each in first if each.shape == one.shape and each.dtype == one.dtype)
        other = next((each for each in like if each.device == one.device and torch.equal(each, one)), None)
        if other is None:
            first.append(one)
        else:
            twins[recorder.value(one).id] = recorder.value(other).id
    return twins


def record(twin: Subject, modes: Collection[str]) -> Trace:
    """Run a module forward and, where its loss has a gradient, backward, once."""
    calls = Calls(recorder := Recorder(twin.module, tuple(tensors_of((twin.inputs, twin.named)))))
    twins, before = equal_buffers(recorder, twin.module), Containers(twin.module).counts()
    numbers = frozenset(one for one in tree_leaves((twin.inputs, twin.named)) if type(one) is int)
    ops, memory, allocated = Ops(calls), Memory(twin, calls), Allocated(twin.device)
    with contextlib.ExitStack() as during, contextlib.ExitStack() as forward:
        if "memory" in modes:
            during.enter_context(allocated)
            during.enter_context(torch.autograd.graph.saved_tensors_hooks(memory.keep, lambda tensor: tensor))
            during.enter_context(memory)
        if "calls" in modes:
            forward.enter_context(calls)
            during.enter_context(ops)
        output = run_recorded(twin)
        forward.close()
        recorder.frames = []
        returned = frozenset(recorder.values[one].id for one in tensors_of(leaves_of(output)) if one in recorder.values)
        loss = loss_of(output)
        with allocated.aside(), _disable_current_modes():
            outputs = [one.clone() for one in detached(output)]
        del output
        memory.keep_of_contexts(loss)
        contexts = saved_by_functions(memory, recorder)
        memory.contexts = []
        backward = differentiate(twin, loss)
        del loss
    memory.end()
    held, leaked = stored_graphs(twin.module), leaks(twin.module, before, lambda: called_again(twin))
    return Trace(
        [call for call in calls.calls if call.stack],
        sorted(memory.saved.values(), key=lambda kept: -kept.bytes),
        memory.peak if allocated.peak is None else allocated.peak,
        sum(map(bytes_of, twin.module.parameters())),
        held,
        outputs,
        tuple(memory.limits(allocated.peak is not None)) if "memory" in modes else (),
        backward=backward,
        training=twin.module.training,
        returned=returned,
        twins=twins,
        derivatives=tuple(calls.derivatives),
        numbers=numbers,
        leaks=tuple(leaked),
        contexts=tuple(contexts),
        cycles=tuple(memory.cycles),
    )


def called_again(twin: Subject) -> None:
    """One call more, which may raise: then nothing more is left behind."""
    twin.runs.more += 1
    with contextlib.suppress(Exception):
        twin()
