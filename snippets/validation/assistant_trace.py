"""What ran, and from which line: one forward and backward of a module, recorded as its author wrote it.

Two records lie over each other. A function mode sees the calls of torch that a line of Python makes (`softmax`,
`matmul`); a dispatch mode sees the operations that PyTorch makes of each, with the bytes that they move. A third, made
in a second run, follows memory: what autograd keeps, and what is alive where most is.
"""

import collections
import contextlib
import functools
import inspect
import linecache
import os
import re
import sys
import sysconfig
import weakref
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

_LIBRARIES = tuple(
    os.path.realpath(folder) + os.sep for folder in (os.path.dirname(torch.__file__), sysconfig.get_paths()["stdlib"])
)
_LAYERS = os.path.join("torch", "nn", "modules")
_PASSED_OVER = ("einops", "jaxtyping", "beartype")  # their lines explain nothing
_PARTS = ("", "_capture", "_findings", "_module", "_patterns", "_profile", "_report", "_trace", "_trials", "_validate")
_OURS = {os.path.join(os.path.dirname(os.path.realpath(__file__)), f"assistant{part}.py") for part in _PARTS}


def words(text: str) -> frozenset[str]:
    """Names, written as in a sentence."""
    return frozenset(text.split())


@dataclass(frozen=True)
class Line:
    """A line of somebody's code."""

    file: str
    number: int
    function: str = ""

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        return f"{shortened(self.file)}:{self.number}"


def shortened(file: str) -> str:
    """A path as short as it still leads to the file: from the working directory, or from site-packages."""
    installed = f"{os.sep}site-packages{os.sep}"
    if installed in file:
        return file.rpartition(installed)[2]
    return file.removeprefix(os.getcwd() + os.sep)


@functools.cache
def is_library(file: str) -> bool:
    """Whether a file belongs to PyTorch, to Python or to this tool: its lines are not the author's."""
    path = os.path.realpath(file)
    if path in _OURS or file.startswith("<"):
        return True
    after = path.rpartition(f"site-packages{os.sep}")[2].split(os.sep)[0]
    inside = "site-packages" in path and not path.startswith(_LIBRARIES[0])
    return after in _PASSED_OVER or (path.startswith(_LIBRARIES) and not inside)


@dataclass(frozen=True)
class Value:
    """A tensor as it was at one time. What is written in place becomes another value."""

    id: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int
    device: str
    origin: str  # "input", "parameter" or "buffer", also of a view or cast of one; "made"; "found" if by no call

    @property
    def numel(self) -> int:
        return functools.reduce(lambda a, b: a * b, self.shape, 1)


@dataclass(frozen=True)
class Op:
    """One operation that PyTorch executed, by what it reads and writes. A view runs nothing."""

    name: str
    read: int
    written: int
    flops: int
    runs: bool
    dtype: torch.dtype | None = None


@dataclass
class Call:
    """One call of torch in somebody's code.

    Attributes:
        name: "softmax" for `F.softmax(x)`, `x.softmax(-1)` and `torch.softmax_(x)` alike.
        stack: the author's lines that led to it, outermost first.
        where: for each of these the activation of its function, and the instruction in it; loops show in them.
        inside: what of PyTorch it ran under: "compile", "checkpoint", or "library" where the author did not call it.
    """

    index: int
    name: str
    stack: tuple[Line, ...]
    where: tuple[tuple[int, int], ...]
    inside: frozenset[str]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...] = ()
    arguments: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)
    forward: list[Op] = field(default_factory=list)
    backward: list[Op] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    writes: bool = False  # into its first input

    @property
    def line(self) -> Line:
        return self.stack[-1] if self.stack else Line("?", 0)

    @property
    def out(self) -> Value | None:
        return self.outputs[0] if self.outputs else None

    @property
    def kernels(self) -> int:
        return sum(op.runs for op in self.forward)

    @property
    def moved(self) -> int:
        return sum(op.read + op.written for op in self.forward if op.runs)

    @property
    def flops(self) -> int:
        return sum(op.flops for op in self.forward)


_READS = (
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__repr__",
    "__format__",
    "__contains__",
)  # .bool() is a cast
_IN_PLACE = tuple(
    f"__i{name}__"
    for name in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"]
)
_SAME = {
    "truediv": "div", "rtruediv": "div", "rmul": "mul", "radd": "add", "multiply": "mul", "divide": "div",
    "true_divide": "div", "subtract": "sub", "negative": "neg", "absolute": "abs", "rpow": "exp", "rmatmul": "matmul",
    "mm": "matmul", "concat": "cat", "concatenate": "cat", "special_softmax": "softmax", "special_expit": "sigmoid",
    "linalg_vector_norm": "norm", "vector_norm": "norm", "hstack": "cat", "vstack": "cat", "arctan": "atan",
    "permute_dims": "permute", "swapaxes": "transpose", "swapdims": "transpose", "movedim": "permute",
    "moveaxis": "permute", "iadd": "add", "imul": "mul", "isub": "sub", "itruediv": "div",
    "special_log_softmax": "log_softmax",
    "matrix_norm": "norm", "linalg_norm": "norm", "expand_as": "expand", "view_as": "view",
    "reshape_as": "reshape", "float_power": "pow",
    "ipow": "pow", "clip": "clamp", "and": "bitwise_and", "or": "bitwise_or", "invert": "bitwise_not",
}  # fmt: skip


def name_of(function: Callable) -> str:
    """What a function of torch computes, in one word, however it was spelt."""
    name = getattr(function, "__name__", str(function))
    if name == "__get__":  # a property of a tensor, such as x.T
        return getattr(getattr(function, "__self__", None), "__name__", "get")
    if name in _READS:
        return name
    name = name.strip("_")
    return _SAME.get(name, name)


VIEWS = words(
    "view reshape transpose permute getitem T mT t unsqueeze squeeze expand chunk split unbind narrow select "
    "flatten unflatten contiguous detach alias H mH data real imag unfold tensor_split view_as_real "
    "view_as_complex movedim as_strided broadcast_to swapaxes clone"
)
CASTS = words("to float half bfloat16 double type type_as")
_FREE = (
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "lift_fresh",
    "detach",
    "_unsafe_view",
    "alias",
    "unsafe_split",
    "unsafe_chunk",
)
_ASKED = words(
    "shape dtype device dim size numel is_cuda ndim requires_grad grad layout is_nested is_sparse itemsize stride "
    "is_contiguous is_floating_point is_complex grad_fn is_leaf storage_offset data_ptr element_size names "
    "get_device is_cpu nelement len untyped_storage is_quantized is_meta is_mkldnn nbytes repr format hash "
    "backward type_ register_hook output_nr version"
)


class Recorder:
    """Gives values their numbers, and lines and loops to a stack of frames."""

    def __init__(self, module: nn.Module, inputs: tuple[Tensor, ...]):
        self.values: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.count = 0
        self.frames: list[tuple[FrameType, int]] = []  # held, so that no later frame gets the address of an earlier one
        self.activations = 0
        for tensor in module.parameters():
            self.new(tensor, "parameter")
        for tensor in module.buffers():
            self.new(tensor, "buffer")
        for tensor in inputs:
            self.new(tensor, "input")

    def new(self, tensor: Tensor, origin: str = "made") -> Value:
        """A number for a tensor that was just made, or written to."""
        self.count += 1
        size = tensor.numel() * tensor.element_size()
        value = Value(self.count, tuple(tensor.shape), tensor.dtype, size, tensor.device.type, origin)
        self.values[tensor] = value
        return value

    def value(self, tensor: Tensor) -> Value:
        """The number of a tensor; one without comes from where the record does not look, such as NumPy."""
        return self.values[tensor] if tensor in self.values else self.new(tensor, "found")

    def stack(self) -> tuple[tuple[Line, ...], tuple[tuple[int, int], ...], frozenset[str]]:
        """The author's lines, outermost first, where in each function they are, and what of torch they run under."""
        frames, layers, inside = [], [], set()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not run_recorded.__code__:
            file = frame.f_code.co_filename
            if not frames and is_library(file) and os.path.realpath(file) not in _OURS:
                inside.add("library")
            if not is_library(file):
                frames.append(frame)
            elif _LAYERS in file and not file.endswith("module.py"):
                layers.append(frame)
            elif "_dynamo" in file and "eval_frame" in file and frame.f_code.co_name != "_fn":  # which is `disable`
                inside.add("compile")
            elif file.endswith(os.path.join("utils", "checkpoint.py")):
                inside.add("checkpoint")
            frame = frame.f_back
        if frame is None:  # nothing that is recorded: backward, or the loss
            frames = layers = []
        frames = frames or layers[:1]  # a module of PyTorch's own layers alone has no other lines
        frames.reverse()
        known = {id(held): number for held, number in self.frames}
        numbered = []
        for one in frames:
            if id(one) not in known:
                self.activations += 1
            numbered.append((one, known.get(id(one), self.activations)))
        self.frames = numbered
        lines = tuple(Line(one.f_code.co_filename, one.f_lineno, one.f_code.co_name) for one in frames)
        return lines, tuple((number, one.f_lasti) for one, number in numbered), frozenset(inside)


# --8<-- [start:calls]
class Calls(TorchFunctionMode):
    """Sees each call of torch that the author wrote, and not what these call in turn."""

    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder, self.calls = recorder, []
        self.current: Call | None = None
        self.begins: list[int] = []  # autograd's sequence number at the start of each call

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(function)
        if name in _ASKED or name.startswith(("len", "lift_fresh")) or self.current is not None:
            return function(*args, **kwargs)
        recorder = self.recorder
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        call = Call(
            len(self.calls),
            name,
            *recorder.stack(),
            inputs=tuple(recorder.value(tensor) for tensor in tensors),
            arguments=tuple(None if isinstance(arg, Tensor) else plain(arg) for arg in args),
            named={key: None if isinstance(arg, Tensor) else plain(arg) for key, arg in kwargs.items()},
        )
        note_facts(call, args, kwargs)
        call.name = name = "index" if call.facts.get("by tensor") else name
        self.begins.append(torch._C._autograd._get_sequence_nr())
        self.calls.append(call)
        self.current = call
        try:
            result = function(*args, **kwargs)
        finally:
            self.current = None
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if name == "setitem" and tensors:
            made = tensors[:1]
        spelt = getattr(function, "__name__", "")
        call.writes = name == "setitem" or spelt in _IN_PLACE or (spelt.endswith("_") and not spelt.endswith("__"))
        origin = call.inputs[0].origin if call.inputs and (name in VIEWS | CASTS or call.writes) else "made"
        if origin == "input" and made and not same_memory(made[0], tensors[0]):
            origin = "made"  # a copy: what writes into it leaves the input alone
        call.outputs = tuple(recorder.new(tensor, origin) for tensor in made)
        return result


# --8<-- [end:calls]


def same_memory(one: Tensor, other: Tensor) -> bool:
    """Whether a tensor is the other, or a view of it."""
    try:
        return one.untyped_storage()._cdata == other.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # a sparse tensor has no storage
        return one is other


def plain(argument: Any) -> Any:
    """An argument without the tensors in it, so that none is kept alive."""
    if isinstance(argument, (list, tuple)):
        return tuple(plain(one) for one in argument)
    return "a tensor" if isinstance(argument, Tensor) else argument


def note_facts(call: Call, args: tuple, kwargs: dict) -> None:
    """What only the numbers in a tensor can tell, looked at while they are there."""
    if call.name == "scaled_dot_product_attention":
        mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        causal = args[5] if len(args) > 5 else kwargs.get("is_causal", False)
        call.facts = {"mask": None if mask is None else kind_of_mask(mask), "causal": bool(causal)}
    elif call.name == "multi_head_attention_forward":
        mask = kwargs.get("attn_mask")
        call.facts = {"mask": None if mask is None else kind_of_mask(mask), "causal": bool(kwargs.get("is_causal"))}
    elif call.name in ("getitem", "setitem") and len(args) > 1:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        call.facts["by mask"] = any(isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8) for one in index)
        call.facts["by list"] = any(isinstance(one, list) or hasattr(one, "__array_interface__") for one in index)
        picks = any(isinstance(one, Tensor) for one in index) or call.facts["by list"]
        call.facts["by tensor"] = call.name == "getitem" and picks  # a copy of what was picked, and no view
        value = args[2] if len(args) > 2 else None
        call.facts["one value"] = call.name == "setitem" and (not isinstance(value, Tensor) or value.numel() == 1)


def kind_of_mask(mask: Tensor) -> str:
    """What a mask says: "causal", "nothing" (all may see all), or "data"."""
    with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
        allowed = mask if mask.dtype == torch.bool else mask == 0
        hidden = mask[~allowed] if mask.dtype != torch.bool else None
        if hidden is not None and not (hidden <= -1e4).all():  # a bias, not a mask
            return "data"
        if allowed.all():
            return "nothing"
        rows, columns = allowed.shape[-2:]
        triangle = torch.ones(rows, columns, dtype=torch.bool, device=mask.device).tril()
        return "causal" if rows == columns and (allowed == triangle).all() else "data"


class Ops(TorchDispatchMode):
    """Sees each operation that PyTorch executes, and hands it to the call that it belongs to, backward included."""

    def __init__(self, calls: Calls):
        super().__init__()
        self.calls, self.stray = calls, []

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = function(*args, **(kwargs or {}))
        op = op_of(function, args, kwargs or {}, result)
        node = torch._C._current_autograd_node()
        if node is not None:
            at = bisect_right(self.calls.begins, node._sequence_nr()) - 1
            call = self.calls.calls[at] if at >= 0 else None
            (call.backward if call else self.stray).append(op)
        else:
            (self.calls.current.forward if self.calls.current else self.stray).append(op)
        return result


def op_of(function: Any, args: tuple, kwargs: dict, result: Any) -> Op:
    """What an operation reads, writes and computes. What is read through an expanded view is counted once."""
    name = function.overloadpacket.__name__
    read = sum(map(bytes_of, tensors_of((args, kwargs))))
    count = flop_registry.get(function.overloadpacket)
    flops = 0
    if count is not None:
        with contextlib.suppress(Exception):  # a formula that does not know these arguments counts nothing
            flops = int(count(*args, **kwargs, out_val=result))
    made = list(tensors_of(result))
    runs = not (function.is_view or name in _FREE)
    return Op(name, read, sum(map(bytes_of, made)), flops, runs, made[0].dtype if made else None)


def tensors_of(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def bytes_of(tensor: Tensor) -> int:
    """How many different bytes of memory a tensor covers."""
    size = tensor.element_size()
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        size *= length if stride or not length else 1
    return size


# ---- memory ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """A tensor that was kept or alive: where it was made, and by what."""

    line: Line
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int
    made_by: str


class Memory(TorchDispatchMode):
    """Counts the bytes that are alive after each operation, and remembers who holds them where they are most."""

    def __init__(self, recorder: Recorder, known: set[int]):
        super().__init__()
        self.recorder, self.known = recorder, known
        self.alive: dict[int, Kept] = {}
        self.now = self.peak = 0
        self.at_peak: list[Kept] = []
        self.saved: dict[int, Kept] = {}
        self.makers: dict[int, str] = {}
        self.watched: list[weakref.finalize] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tensors_of(result):
            self.made(tensor, function.overloadpacket.__name__)
        if self.now > self.peak:
            self.peak, self.at_peak = self.now, list(self.alive.values())
        return result

    def made(self, tensor: Tensor, name: str) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.alive or key in self.known:
            return
        lines = self.recorder.stack()[0]
        self.recorder.frames = []
        line = lines[-1] if lines else Line("backward", 0)
        self.alive[key] = Kept(line, tuple(tensor.shape), tensor.dtype, storage.nbytes(), name)
        self.now += storage.nbytes()
        self.watched.append(weakref.finalize(storage, self.freed, key))

    def freed(self, key: int) -> None:
        kept = self.alive.pop(key, None)
        self.now -= kept.bytes if kept else 0

    def keep(self, tensor: Tensor) -> Tensor:
        """Called with each tensor that autograd saves for backward."""
        key = tensor.untyped_storage()._cdata
        if key not in self.known and key in self.alive:
            self.saved.setdefault(key, self.alive[key])
        return tensor

    def end(self) -> None:
        for watched in self.watched:
            watched.detach()


@dataclass
class Trace:
    """All that was seen of one module."""

    calls: list[Call]
    saved: list[Kept]  # largest first
    at_peak: list[Kept]  # largest first
    peak: int  # bytes made by the call and alive at once
    backward: bool
    parameters: int  # bytes
    inputs: int  # bytes
    outputs: int  # bytes
    stray: list[Op] = field(default_factory=list)
    held: list[Line] = field(default_factory=list)  # where the module stores a result that holds on to its graph

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


def run_recorded(run: Callable[[], Any]) -> Any:
    """Run something; stacks end here."""
    return run()


def record(module: nn.Module, inputs: tuple, named: dict, loss: Callable[[Any], Tensor | None]) -> Trace:
    """Run a module forward and, where the loss has a gradient, backward, twice: once for calls, once for memory.

    Args:
        loss: from the module's output the number to differentiate, or None.
    """
    given = tuple(tensors_of((inputs, named)))
    recorder = Recorder(module, given)
    calls = Calls(recorder)
    ops = Ops(calls)
    with calls, ops:
        output = run_recorded(lambda: module(*inputs, **named))
    made = sum(map(bytes_of, tensors_of(leaves_of(output))))
    total = loss(output)
    wanted = [one for one in (*module.parameters(), *given) if one.requires_grad]
    differentiable = total is not None and total.requires_grad and bool(wanted)
    del output
    if differentiable:
        with ops:
            torch.autograd.grad(total, wanted, allow_unused=True)
    recorder.frames = []
    del total
    held = stored_graphs(module)
    memory = record_memory(module, inputs, named, loss, differentiable, wanted)
    return Trace(
        [call for call in calls.calls if call.stack],
        sorted(memory.saved.values(), key=lambda kept: -kept.bytes),
        sorted(memory.at_peak, key=lambda kept: -kept.bytes),
        memory.peak,
        differentiable,
        sum(map(bytes_of, module.parameters())),
        sum(map(bytes_of, given)),
        made,
        ops.stray,
        held,
    )


def record_memory(
    module: nn.Module, inputs: tuple, named: dict, loss: Callable, backward: bool, wanted: list[Tensor]
) -> Memory:
    """The same run, without anything that keeps frames, and so their tensors, alive."""
    given = tuple(tensors_of((inputs, named)))
    recorder = Recorder(module, given)
    known = {tensor.untyped_storage()._cdata for tensor in (*module.parameters(), *module.buffers(), *given)}
    memory = Memory(recorder, known)
    with torch.autograd.graph.saved_tensors_hooks(memory.keep, lambda tensor: tensor), memory:
        output = run_recorded(lambda: module(*inputs, **named))
        total = loss(output)
        del output
        if backward and total is not None:
            torch.autograd.grad(total, wanted, allow_unused=True)
        del total
    memory.end()
    return memory


def stored_graphs(module: nn.Module) -> list[Line]:
    """The lines of `forward` that store a tensor with its graph in the module, where it stays after the call."""
    lines = []
    for part in module.modules():
        for name, value in vars(part).items():
            if name.startswith("_") or not any(one.grad_fn is not None for one in tensors_of(stored(value))):
                continue
            lines += lines_that_store(part, name)
    return lines


def lines_that_store(part: nn.Module, name: str) -> list[Line]:
    """The lines of a module's methods, its constructor aside, that write to an attribute or put something into it."""
    lines = []
    methods = {key: value for kind in reversed(type(part).__mro__) for key, value in vars(kind).items()}
    for key, method in methods.items():
        code = getattr(inspect.unwrap(method) if callable(method) else method, "__code__", None)
        if code is None or key == "__init__" or not code.co_varnames or is_library(code.co_filename):
            continue
        me = code.co_varnames[0]
        stores = re.compile(
            rf"\b{me}\.{name}(\[.*\])?\s*([-+*/%|&]|//|:[^=]*)?=(?!=)|\b{me}\.{name}\.(append|add|extend|update)\b"
        )
        try:
            source, first = inspect.getsourcelines(code)
        except OSError:  # a class made at run time has no file
            continue
        at = [number for number, text in enumerate(source, first) if stores.search(text)]
        lines += [Line(code.co_filename, number, code.co_name) for number in at]
    return lines


def stored(value: Any) -> Any:
    return list(value) if isinstance(value, (set, collections.deque)) else value


def leaves_of(output: Any) -> list[Any]:
    """What a module returned, flat: lists, dicts, dataclasses and the outputs of transformers alike."""
    if hasattr(output, "to_tuple"):
        output = output.to_tuple()
    return tree_leaves(output)
