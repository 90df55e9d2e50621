"""Where is the peak of a step's memory, and who holds it? One file to copy.

    print(report(record(step, model, optimizer)))           counts tensors; needs no GPU, under FakeTensorMode no memory
    print(report(read(recorded(step))))                      asks the GPU's allocator
    print(report(allocated(step)))                           asks the CPU's allocator
    print(table(saved(model, lambda: model(x))))             what autograd keeps for backward, by layer
    python memory.py snapshot.pickle                         what torch.cuda.memory._dump_snapshot wrote

Bytes are those of tensors. What a process needs beside them (the CUDA context, its libraries) no tensor shows.
"""

import argparse
import gc
import pickle
import re
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._profiler import _EventType
from torch._subclasses.fake_tensor import FakeTensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import set_checkpoint_early_stop

MB = 10**6


# --8<-- [start:peak]
@dataclass(frozen=True)
class Block:
    """Memory that somebody holds: its size, and whoever asked for it."""

    nbytes: int
    who: str


@dataclass(frozen=True)
class History:
    """Blocks that existed before, and then in order each that came (a block) and each that went (None), by key."""

    before: Mapping[object, Block]
    events: Sequence[tuple[object, Block | None]]
    lacks: Sequence[str] = ()  # what a count of tensors does not have, in words


@dataclass(frozen=True)
class Peak:
    """The highest point of a history: whose block led to it, the bytes, and who held how many of them."""

    by: str
    nbytes: int
    held: Mapping[str, int]


def peak_of(history: History) -> Peak:
    """Play the events once to find the highest point, and once more up to it."""
    alive, now, highest, at = dict(history.before), total(history.before), total(history.before), -1
    for number, (key, block) in enumerate(history.events):
        gone = alive.pop(key, None)
        now -= gone.nbytes if gone else 0
        if block:
            alive[key] = block
            now += block.nbytes
        if now > highest:
            highest, at = now, number
    alive = dict(history.before)
    for key, block in history.events[: at + 1]:
        alive.pop(key, None)
        if block:
            alive[key] = block
    held: Counter[str] = Counter()
    for block in alive.values():
        held[block.who] += block.nbytes
    block = history.events[at][1] if at >= 0 else None
    return Peak(block.who if block else "", highest, dict(held.most_common()))


# --8<-- [end:peak]


def total(blocks: Mapping[object, Block]) -> int:
    return sum(block.nbytes for block in blocks.values())


# ---- counting tensors -----------------------------------------------------------------------------------


@contextmanager
def modules_named(model: nn.Module, running: list[str]) -> Iterator[None]:
    """While it lasts, `running` holds the names of the modules whose forward runs, the innermost last."""

    def leave(*_: object) -> None:  # what a hook returns would take the result's place
        running.pop()

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            enter = module.register_forward_pre_hook(lambda *_, name=name: running.append(name))
            hooks.callback(enter.remove)
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


# --8<-- [start:ledger]
EMPTY = {"mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn", "cudnn_batch_norm"}  # under fake tensors their reserve is
INSIDE = re.compile(
    "conv|fft|rnn|upsample|cum|attention|dist|linalg|batch_norm|embedding|logsumexp|ctc|trilinear|kthvalue|median"
)


class Ledger(TorchDispatchMode):
    """Notes every storage that an operation takes or makes, and the moment in which it is freed.

    It sees what crosses the dispatcher: no memory that an operation needs inside, and nothing inside compiled code.
    """

    def __init__(self) -> None:
        super().__init__()
        self.running: list[str] = []  # modules whose forward runs
        self.phase = ""  # of the optimizer
        self.made: list[Block] = []  # by key: keys are never used twice
        self.events: list[tuple[int, bool]] = []
        self.keys: dict[int, int] = {}  # of the storages that are alive
        self.seen: dict[str, bool] = {}  # operations, and whether their results were fake

    def __torch_dispatch__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.notice((args, kwargs), "inputs")
        result = func(*args, **kwargs or {})
        self.seen[func.overloadpacket.__name__] = self.notice(result)
        return result

    def notice(self, tree: Any, who: str = "") -> bool:
        """Count the tensors that are new. Returns whether one is fake."""
        tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
        for tensor in tensors:
            wrapped = who and not tensor.dim()  # a Python number that PyTorch made a tensor of
            if not wrapped and tensor.untyped_storage()._cdata not in self.keys:
                self.note(tensor, who)
        return any(isinstance(tensor, FakeTensor) for tensor in tensors)

    def note(self, tensor: Tensor, who: str = "") -> None:
        """Count a tensor's storage, once; `who` names it, or names it anew."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self.keys:
            key = self.keys[address] = len(self.made)
            self.made.append(Block(storage.nbytes(), who or self.who()))
            self.events.append((key, True))
            weakref.finalize(storage, self.freed, address, key).atexit = False
        elif who:
            self.made[self.keys[address]] = Block(storage.nbytes(), who)

    def freed(self, address: int, key: int) -> None:
        self.keys.pop(address, None)
        self.events.append((key, False))

    def who(self) -> str:
        if self.phase:
            return self.phase
        if torch._C._current_autograd_node() is not None:
            return "backward, temporary"
        return f"forward of {self.running[-1] or 'the model'}" if self.running else "elsewhere"

    @property
    def history(self) -> History:
        return History({}, [(key, self.made[key] if born else None) for key, born in self.events], self.lacks)

    @property
    def lacks(self) -> list[str]:
        """What the operations that ran may have needed beside their tensors."""
        inside = sorted({name.removesuffix("_backward") for name in self.seen if INSIDE.search(name)})
        empty = sorted(name for name, fake in self.seen.items() if fake and name in EMPTY)
        lacks = [f"temporary memory inside {', '.join(inside)}"] if inside else []
        return lacks + [f"what {name} keeps for backward: run it without FakeTensorMode" for name in empty]

    @property
    def alive(self) -> int:
        """Bytes that are held now."""
        return sum(self.made[key].nbytes for key in self.keys.values())


# --8<-- [end:ledger]


# --8<-- [start:record]
def record(step: Callable[[], object], model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> History:
    """Run a step and note who holds what. Parameters, gradients and the optimizer's state are named as such."""
    ledger = Ledger()

    def name_state() -> None:
        states = optimizer.state.values() if optimizer else []
        for tensor in tree_leaves([list(state.values()) for state in states]):
            if isinstance(tensor, Tensor):
                ledger.note(tensor, "optimizer state")

    def name_gradient(p: Tensor) -> None:
        if p.grad is not None:  # another hook may have used it up
            ledger.note(p.grad, "gradients")

    def phase(name: str) -> None:
        ledger.phase = name

    for tensor in model.parameters():
        ledger.note(tensor, "parameters")
    for tensor in model.buffers():
        ledger.note(tensor, "buffers")
    name_state()
    with ExitStack() as hooks:
        hooks.enter_context(modules_named(model, ledger.running))
        for p in model.parameters():
            name_gradient(p)
            if p.requires_grad:
                hook = p.register_post_accumulate_grad_hook(name_gradient)
                hooks.callback(hook.remove)
        if isinstance(optimizer, torch.optim.Optimizer):
            hooks.callback(optimizer.register_step_pre_hook(lambda *_: phase("optimizer, temporary")).remove)
            hooks.callback(optimizer.register_step_post_hook(lambda *_: phase("")).remove)
        with ledger:
            step()
        name_state()
        return ledger.history


# --8<-- [end:record]


# --8<-- [start:saved]
@dataclass(frozen=True)
class Saved:
    """A tensor that autograd keeps from forward to backward, and the module that ran when it was kept first."""

    module: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    known: bool = True  # an empty fake tensor may stand for what only a real run can size, as the reserve of an LSTM


def saved(model: nn.Module, forward: Callable[[], object]) -> list[Saved]:
    """What a forward keeps for backward. Each storage counts once; the model's parameters exist anyway.

    What a torch.autograd.Function keeps in its `ctx` under names of its own is found in the graph of the results.
    """
    running: list[str] = []
    own = {p.untyped_storage()._cdata for p in [*model.parameters(), *model.buffers()]}
    seen: dict[int, torch.UntypedStorage] = {}  # held, so that no address is used twice
    kept: list[Saved] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own and storage._cdata not in seen:
            seen[storage._cdata] = storage
            module, dtype = running[-1] if running else "", str(tensor.dtype).removeprefix("torch.")
            known = not isinstance(tensor, FakeTensor) or storage.nbytes() > 0
            kept.append(Saved(module, dtype, tuple(tensor.shape), storage.nbytes(), known))
        return tensor.detach()  # an operation that keeps its own result would be held by it, and never freed

    with modules_named(model, running), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    running.clear()
    for node in {node for tensor in tree_leaves(result) if isinstance(tensor, Tensor) for node in nodes_of(tensor)}:
        for tensor in in_context(node):
            pack(tensor)
    return kept


# --8<-- [end:saved]


# --8<-- [start:graphs]
def nodes_of(tensor: Tensor) -> set[torch.autograd.graph.Node]:
    """Every node of the graph that leads to a tensor."""
    nodes: set[torch.autograd.graph.Node] = set()
    waiting = [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            waiting += [further for further, _ in node.next_functions]
    return nodes


def in_context(node: torch.autograd.graph.Node) -> list[Tensor]:
    """The tensors that a torch.autograd.Function keeps as attributes of its ctx."""
    attributes = tree_leaves(list(getattr(node, "__dict__", {}).values()))
    return [leaf for leaf in attributes if isinstance(leaf, Tensor)]


def saved_in(node: torch.autograd.graph.Node) -> Iterator[Tensor]:
    """The tensors that a node of a graph keeps; of those that autograd saved, none if backward has been there."""
    yield from in_context(node)
    for name in dir(node):
        if name == "saved_tensors" or name.startswith("_saved_"):
            try:
                found = tree_leaves(getattr(node, name))
            except (RuntimeError, ValueError):  # freed by backward
                continue
            yield from (kept for kept in found if isinstance(kept, Tensor))


def held_by(tensor: Tensor) -> int:
    """Bytes that live on because of this tensor's graph: what autograd saved in it, and backward has not freed.

    Leaves exist anyway, such as parameters and the views of them that products save.
    """
    nodes = nodes_of(tensor)
    leaves = {node.variable.untyped_storage()._cdata for node in nodes if hasattr(node, "variable")}
    storages = (kept.untyped_storage() for node in nodes for kept in saved_in(node))
    return sum({storage._cdata: storage.nbytes() for storage in storages if storage._cdata not in leaves}.values())


def graphs_alive() -> list[tuple[int, Tensor]]:
    """The tensors by which Python holds graphs, with what each holds, the most first: the ends, no tensor inside."""
    gc.collect()
    # the class is asked of the object's type: isinstance would run properties of objects that pretend
    tensors = [found for found in gc.get_objects() if issubclass(type(found), Tensor) and found.grad_fn is not None]
    inside = {node for tensor in tensors for node in nodes_of(tensor) - {tensor.grad_fn}}
    ends = [tensor for tensor in tensors if tensor.grad_fn not in inside]
    held = ((held_by(tensor), tensor) for tensor in ends)
    # what a compiler has traced has sizes that are symbols, and holds no memory
    return sorted((pair for pair in held if isinstance(pair[0], int)), key=lambda pair: -pair[0])


# --8<-- [end:graphs]


# ---- asking the allocator -------------------------------------------------------------------------------


# --8<-- [start:recorded]
def recorded(step: Callable[[], object], most: int = 1_000_000) -> dict:
    """Run a step on a GPU and return the allocator's snapshot, with every event and its Python stack.

    If the step runs out of memory, that is said, and the snapshot is of what happened until then.

    A checkpoint ends its second forward early, by an exception. Recording can lose that on the way (torch 2.11 with
    Python before 3.13), and backward fails with "returned NULL without setting an exception": so it runs to its end.

    Raises:
        RuntimeError: there is no GPU, whose allocator alone keeps such a history.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA GPU: only its allocator keeps a history; record() counts tensors on any device")
    torch.cuda.memory._record_memory_history(max_entries=most, stacks="python", clear_history=True)
    try:
        try:
            with set_checkpoint_early_stop(False):
                step()
            torch.cuda.synchronize()
        except torch.OutOfMemoryError as error:
            print(f"The step ran out of memory, and its history ends there. {error}", file=sys.stderr)
        return torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


# --8<-- [end:recorded]


def allocated(step: Callable[[], object]) -> History:
    """Run a step on a CPU, and return what its allocator gave out, by operation: also what operations need inside.

    Raises:
        RuntimeError: a profiler runs already, and there can be one only.
    """
    if torch.autograd._profiler_enabled():
        raise RuntimeError("a profiler runs already: call allocated() outside of it")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    waiting, found = list(profiled.profiler.kineto_results.experimental_event_tree()), []
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.tag == _EventType.Allocation and event.extra_fields.device.type == "cpu":
            found.append(event)
    events: list[tuple[object, Block | None]] = []
    for event in sorted(found, key=lambda event: event.start_time_ns):
        size, address = event.extra_fields.alloc_size, event.extra_fields.ptr
        events.append((address, Block(size, operation_of(event)) if size > 0 else None))
    return History({}, events)


def operation_of(event: Any) -> str:
    """The outermost operation in which something was allocated."""
    name = "elsewhere"
    while event := event.parent:
        name = event.name if event.name.startswith("aten::") else name
    return name


# --8<-- [start:read]
def read(snapshot: Mapping, device: int | None = None) -> History:
    """The history in a snapshot, of the device that has one.

    What was allocated before the recording is found from its end: it is still there, or it was freed and never came.

    Raises:
        ValueError: this is no snapshot, or no device has a history in it.
    """
    try:
        traces, segments = snapshot["device_traces"], snapshot["segments"]
    except (KeyError, TypeError) as error:
        raise ValueError("expected a snapshot with device_traces and segments, as _dump_snapshot writes it") from error
    if device is None:
        device = next((number for number, trace in enumerate(traces) if trace), None)
    if device is None:
        raise ValueError("the snapshot has no history: call torch.cuda.memory._record_memory_history() before the step")
    events: list[tuple[object, Block | None]] = []
    before: dict[object, Block] = {}
    born: set[int] = set()
    for entry in traces[device]:
        if entry["action"] == "alloc":
            born.add(entry["addr"])
            events.append((entry["addr"], Block(entry["size"], line_of(entry))))
        elif entry["action"] == "free_completed":
            if entry["addr"] not in born:
                before[entry["addr"]] = Block(entry["size"], "before the recording")
            born.discard(entry["addr"])
            events.append((entry["addr"], None))
    for address, block in blocks(segments, device):
        if block["state"] == "active_allocated" and address not in born:
            before[address] = Block(block.get("requested_size", block["size"]), "before the recording")
    return History(before, events)


def blocks(segments: Iterable[Mapping], device: int) -> Iterator[tuple[int, Mapping]]:
    """The blocks of a device's segments, with their addresses."""
    for segment in segments:
        if segment.get("device", device) == device:
            address = segment["address"]
            for block in segment["blocks"]:
                yield block.get("address", address), block
                address += block["size"]


def line_of(entry: Mapping) -> str:
    """The innermost line of a stack that is not PyTorch's; of backward, that of the forward where it is known."""
    for kind, before in (("frames", ""), ("forward_frames", "backward of ")):
        for frame in entry.get(kind) or []:
            name = frame["filename"] if isinstance(frame, Mapping) else ""
            if name.endswith(".py") and not re.search(r"/(torch|triton)/|^<|importlib|runpy", name):
                return f"{before}{Path(name).name}:{frame['line']} {frame['name']}"
    return "no Python on the stack: backward"


# --8<-- [end:read]


@dataclass(frozen=True)
class Arena:
    """What the allocator has from CUDA, in bytes.

    Attributes:
        reserved: in all segments.
        allocated: in blocks that tensors use.
        free: in blocks that nobody uses, of segments in which others are used; `empty_cache` cannot return these.
        idle: in segments that nobody uses; `empty_cache` returns these.
        largest: the largest free block: the most that one tensor gets without asking CUDA again.
    """

    reserved: int
    allocated: int
    free: int
    idle: int
    largest: int


def arena(snapshot: Mapping, device: int = 0) -> Arena:
    """How full the allocator's segments were when the snapshot was taken."""
    segments = [segment for segment in snapshot["segments"] if segment.get("device", device) == device]
    used, free, idle, largest = 0, 0, 0, 0
    for segment in segments:
        sizes = [block["size"] for block in segment["blocks"] if block["state"] == "inactive"]
        empty = len(sizes) == len(segment["blocks"])
        used += sum(block["size"] for block in segment["blocks"] if block["state"] != "inactive")
        idle += empty * sum(sizes)
        free += (not empty) * sum(sizes)
        largest = max([largest, *sizes])
    return Arena(sum(segment["total_size"] for segment in segments), used, free, idle, largest)


# ---- showing it -----------------------------------------------------------------------------------------


def report(history: History, most: int = 12) -> str:
    """Who held what at the peak, as text."""
    peak = peak_of(history)
    lines = [f"{'peak':<58}{peak.nbytes / MB:>10,.1f} MB", f"  reached by: {peak.by or 'nothing new'}"]
    listed = list(peak.held.items())
    lines += [f"  {name:<56}{size / MB:>10,.1f}" for name, size in listed[:most]]
    if rest := listed[most:]:
        lines.append(f"  {f'{len(rest)} others':<56}{sum(size for _, size in rest) / MB:>10,.1f}")
    for lack in history.lacks:
        lines.append(fill(f"not counted: {lack}", 78, initial_indent="  ", subsequent_indent="    "))
    return "\n".join(lines)


def table(kept: Sequence[Saved], most: int = 20) -> str:
    """Saved tensors by layer, numbered layers together; the most first."""
    sizes: Counter[tuple[str, str, tuple[int, ...]]] = Counter()
    counts: Counter[tuple[str, str, tuple[int, ...]]] = Counter()
    for tensor in kept:
        row = (re.sub(r"(?<=[a-z_]\.)\d+|^\d+(?=\.|$)", "*", tensor.module) or "the model", tensor.dtype, tensor.shape)
        sizes[row] += tensor.nbytes
        counts[row] += 1
    lines = [f"{'MB':>10}  {'tensors':>7}  {'module':<24}{'dtype':<10}shape"]
    listed = sizes.most_common()
    for row, size in listed[:most]:
        module, dtype, shape = row
        lines.append(f"{size / MB:>10,.1f}  {counts[row]:>7}  {module:<24}{dtype:<10}{' × '.join(map(str, shape))}")
    if rest := listed[most:]:
        others, tensors = sum(size for _, size in rest), sum(counts[row] for row, _ in rest)
        lines.append(f"{others / MB:>10,.1f}  {tensors:>7}  {len(rest)} other lines")
    lines.append(f"{sum(sizes.values()) / MB:>10,.1f}  {sum(counts.values()):>7}  in all")
    if unknown := sum(not tensor.known for tensor in kept):
        lines.append(f"{'unknown':>10}  {unknown:>7}  empty under FakeTensorMode: run it without, to count them")
    return "\n".join(lines)


def show(found: Arena) -> str:
    names = "reserved", "allocated", "free", "idle", "largest"
    return ", ".join(f"{name} {getattr(found, name) / MB:,.0f}" for name in names) + " MB"


def main(arguments: list[str]) -> int:
    """Report on a snapshot; returns the exit status."""
    parser = argparse.ArgumentParser("memory.py", description="Who held a GPU's memory at the peak?")
    written = "what torch.cuda.memory._dump_snapshot wrote: a pickle, so one that you trust"
    parser.add_argument("snapshot", nargs="?", help=written)
    parser.add_argument("--lines", type=int, default=12, help="of the report (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.snapshot is None:
        parser.print_help()
        return 0
    try:
        snapshot = pickle.loads(Path(options.snapshot).read_bytes())
        print(report(read(snapshot), options.lines))
        print(show(arena(snapshot)))
    except (OSError, ValueError, pickle.UnpicklingError, EOFError) as error:
        print(f"memory: {options.snapshot}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
