"""Calls of torch as a module's author wrote them, each with the operations that PyTorch makes of it."""

import collections
import contextlib
import dataclasses
import functools
import inspect
import os
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
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

from .lines import Line, is_library, is_ours
from .names import ASKED, FORMS, FREE, IN_PLACE, NUMBERS, PASSED, name_of

LAYERS = os.path.join("torch", "nn", "modules")
FEW = 64  # numbers: of so many that the host reads at once, a copy is kept
PAUSED = 8  # generators whose frames are held while something else runs


@dataclass(frozen=True)
class Value:
    """A tensor as it was at one time. What is written in place becomes another value."""

    id: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int
    device: str
    origin: str  # "input", "parameter" or "buffer", also of a view or cast of one; "made"; "found" if by no call
    grad: bool = False  # whether autograd follows it

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
        inside: what of PyTorch it ran under: "compile", "checkpoint", "distributions", or "library" where the author
            did not call it.
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
    def read(self) -> tuple[Value, ...]:
        """The inputs whose numbers matter."""
        return self.inputs[1:] if self.name in FORMS else self.inputs

    @property
    def kernels(self) -> int:
        return sum(op.runs for op in self.forward)

    @property
    def moved(self) -> int:
        return sum(op.read + op.written for op in self.forward if op.runs)

    @property
    def flops(self) -> int:
        return sum(op.flops for op in self.forward)


@dataclass(frozen=True)
class Derivative:
    """One call of torch.autograd.grad: of what, by what, in which direction, and as in a `Call` what led to it.

    Attributes:
        given: the derivatives.
    """

    results: tuple[Value, ...]
    by: tuple[Value, ...]
    along: tuple[Value, ...]
    stack: tuple[Line, ...]
    where: tuple[tuple[int, int], ...]
    given: tuple[Value, ...] = ()

    @classmethod
    def of(cls, recorder: "Recorder", outputs: Any, inputs: Any, grad_outputs: Any = None, **_: Any) -> "Derivative":
        sides = (tuple(map(recorder.value, tensors_of(side))) for side in (outputs, inputs, grad_outputs))
        return cls(*sides, *recorder.stack()[:2])


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
        value = Value(
            self.count, tuple(tensor.shape), tensor.dtype, size, tensor.device.type, origin, tensor.requires_grad
        )
        for one in (tensor, *wrapped_in(tensor)):
            self.values[one] = value
        return value

    def value(self, tensor: Tensor) -> Value:
        """The number of a tensor; one without comes from where the record does not look, such as NumPy.

        What torch.func maps or differentiates has the number of what it wraps.
        """
        if tensor in self.values:
            return self.values[tensor]
        known = next((self.values[one] for one in wrapped_in(tensor) if one in self.values), None)
        if known is None:
            return self.new(tensor, "found")
        size = tensor.numel() * tensor.element_size()
        self.values[tensor] = dataclasses.replace(known, shape=tuple(tensor.shape), bytes=size)
        return self.values[tensor]

    def stack(self) -> tuple[tuple[Line, ...], tuple[tuple[int, int], ...], frozenset[str]]:
        """The author's lines, outermost first, where in each function they are, and what of torch they run under."""
        frames, layers, inside = [], [], set()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not run_recorded.__code__:
            file = frame.f_code.co_filename
            if not frames and is_library(file) and not is_ours(file):
                inside.add("library")
            if not is_library(file):
                frames.append(frame)
            elif LAYERS in file and not file.endswith("module.py"):
                layers.append(frame)
            elif "_dynamo" in file and "eval_frame" in file and frame.f_code.co_name != "_fn":  # which is `disable`
                inside.add("compile")
            elif file.endswith(os.path.join("utils", "checkpoint.py")):
                inside.add("checkpoint")
            elif os.path.join("torch", "distributions") in file:
                inside.add("distributions")
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
        others = [held for held in self.frames if all(held[0] is not one for one in frames)]
        paused = [held for held in others if held[0].f_code.co_flags & inspect.CO_GENERATOR]
        self.frames = [*numbered, *paused[:PAUSED]]  # a generator goes on after calls that are not made under it
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
        self.derivatives: list[Derivative] = []

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(function)
        if function is torch.autograd.grad and self.current is None:
            asked = Derivative.of(self.recorder, *args[:3], **kwargs)
            result = function(*args, **kwargs)
            given = tuple(map(self.recorder.value, tensors_of(result)))
            self.derivatives.append(dataclasses.replace(asked, given=given))
            return result
        if name in ASKED or name.startswith(("len", "lift_fresh")) or self.current is not None:
            return function(*args, **kwargs)
        recorder = self.recorder
        tensors = [*tensors_of((args, kwargs)), *bounds_of(args)]
        call = Call(
            len(self.calls),
            name,
            *recorder.stack(),
            inputs=tuple(recorder.value(tensor) for tensor in tensors),
            arguments=tuple(None if isinstance(arg, Tensor) else plain(arg) for arg in args),
            named={key: None if isinstance(arg, Tensor) else plain(arg) for key, arg in kwargs.items()},
        )
        note_facts(call, args, kwargs)
        if any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors)):
            call.facts["by torch.func"] = True
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
        if name in NUMBERS and not made and tensors and tensors[0].numel() <= FEW:
            call.facts["numbers"] = frozenset(one for one in tree_leaves(result) if isinstance(one, (int, float)))
        spelt = getattr(function, "__name__", "")
        call.writes = name == "setitem" or spelt in IN_PLACE or (spelt.endswith("_") and not spelt.endswith("__"))
        origin = call.inputs[0].origin if call.inputs and (name in PASSED or call.writes) else "made"
        if origin == "input" and made and not same_memory(made[0], tensors[0]):
            origin = "made"  # a copy: what writes into it leaves the input alone
        call.outputs = tuple(recorder.new(tensor, origin) for tensor in made)
        return result


# --8<-- [end:calls]


def wrapped_in(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors inside one that torch.func maps or differentiates, outermost first."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
        yield tensor


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
    if isinstance(argument, slice):
        return slice(*map(plain, (argument.start, argument.stop, argument.step)))
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
    elif call.name in HIDES and len(args) > 1:
        scores, mask = args[:2] if call.name != "where" else args[1::-1]
        if isinstance(scores, Tensor) and isinstance(mask, Tensor) and may_hide(mask, scores):
            call.facts["mask"] = kind_of_mask(~mask if call.name == "masked_fill" else mask)
    elif call.name in COMPARES:
        sides = (*args, *kwargs.values())[:2]
        call.facts["ordered"] = tuple(isinstance(one, Tensor) and is_ordered(one) for one in sides)
    elif call.name in ("getitem", "setitem") and len(args) > 1:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        call.facts["by mask"] = any(isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8) for one in index)
        call.facts["by list"] = any(isinstance(one, list) or hasattr(one, "__array_interface__") for one in index)
        picks = any(isinstance(one, Tensor) for one in index) or call.facts["by list"]
        call.facts["by tensor"] = call.name == "getitem" and picks  # a copy of what was picked, and no view
        value = args[2] if len(args) > 2 else None
        call.facts["one value"] = call.name == "setitem" and (not isinstance(value, Tensor) or value.numel() == 1)


HIDES, LONGEST = ("masked_fill", "where", "add"), 4096  # rows of a mask whose numbers are looked at


COMPARES, EDGES = ("gt", "ge", "lt", "le", "eq"), 2**16  # numbers that may be the edges of bins


def is_ordered(edges: Tensor) -> bool:
    """Whether each row of some numbers is in order; they may be the edges of bins."""
    if not 1 < edges.numel() <= EDGES or edges.dtype in (torch.bool, *COMPLEX) or edges.layout != torch.strided:
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(edges):
        return False
    with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
        longest = max(range(edges.dim()), key=lambda dim: edges.shape[dim])
        count = edges.shape[longest] - 1
        with contextlib.suppress(RuntimeError):  # a dtype that PyTorch does not compare, such as float8
            return bool((edges.narrow(longest, 1, count) >= edges.narrow(longest, 0, count)).all())
        return False


COMPLEX = (torch.complex64, torch.complex128)


def may_hide(mask: Tensor, scores: Tensor) -> bool:
    """Whether a tensor may be the mask of a square of scores: of one batch, and of truths or constants."""
    rows, columns = mask.shape[-2:] if mask.dim() >= 2 else (0, 1)
    square = rows == columns and 1 < rows <= LONGEST and mask.shape[-2:] == scores.shape[-2:] and scores.dim() >= 3
    constant = mask.dtype == torch.bool or not (mask.requires_grad or mask.numel() > rows * columns)
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(mask)
    return square and constant and not wrapped and mask.numel() <= scores.numel()


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
        if rows == columns and (allowed == triangle).all():
            return "causal"
        return "band" if rows == columns >= WINDOWED and is_band(allowed) else "data"


WINDOWED = 256  # rows, from which on most tiles of a kernel may be hidden


def is_band(allowed: Tensor) -> bool:
    """Whether each row allows one short run of columns, as a window or a document in a packed row does."""
    runs = (allowed[..., 1:] & ~allowed[..., :-1]).sum(-1) + allowed[..., 0]
    return bool((runs <= 1).all()) and 4 * int(allowed.sum()) <= allowed.numel()


class Ops(TorchDispatchMode):
    """Sees each operation that PyTorch executes, and hands it to the call that it belongs to, backward included."""

    def __init__(self, calls: Calls):
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = function(*args, **(kwargs or {}))
        op = op_of(function, args, kwargs or {}, result)
        node = torch._C._current_autograd_node()
        if node is not None:
            at = bisect_right(self.calls.begins, node._sequence_nr()) - 1
            if at >= 0:
                self.calls.calls[at].backward.append(op)
        elif self.calls.current:
            self.calls.current.forward.append(op)
        return result


def op_of(function: Any, args: tuple, kwargs: dict, result: Any) -> Op:
    """What an operation reads, writes and computes. What is read through an expanded view is counted once."""
    name = function.overloadpacket.__name__
    read = sum(map(bytes_of, tensors_of((args[name in FORMS :], kwargs))))
    count = flop_registry.get(function.overloadpacket)
    flops = 0
    if count is not None:
        with contextlib.suppress(Exception):  # a formula that does not know these arguments counts nothing
            flops = int(count(*args, **kwargs, out_val=result))
    made = list(tensors_of(result))
    runs = not (function.is_view or name in FREE)
    return Op(name, read, sum(map(bytes_of, made)), flops, runs, made[0].dtype if made else None)


def tensors_of(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def bounds_of(tree: Any) -> list[Tensor]:
    """The tensors that bound a slice: `x[:n]`."""
    slices = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, slice)]
    return [one for each in slices for one in tensors_of((each.start, each.stop, each.step))]


def bytes_of(tensor: Tensor) -> int:
    """How many different bytes of memory a tensor covers."""
    size = tensor.element_size()
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        size *= length if stride or not length else 1
    return size


def leaves_of(output: Any) -> list[Any]:
    """What a module returned, flat: lists, dicts, dataclasses and the outputs of transformers alike."""
    return [leaf for _, leaf in named_leaves(output, "")]


def named_leaves(value: Any, name: str, depth: int = 12) -> Iterator[tuple[str, Any]]:
    """Tensors, numbers and words in whatever a module takes or gives, each by the way that leads to it.

    What stands in an order goes by its number there, so that a list is as good as a tuple or a dataclass.
    """
    if isinstance(value, (Tensor, nn.Module, type)) or not depth:
        yield name, value
        return
    if hasattr(value, "to_tuple"):  # outputs of transformers
        value = value.to_tuple()
    elif dataclasses.is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(stored(value), list):
        value = stored(value)
    elif not isinstance(value, (Mapping, list, tuple)) and hasattr(value, "__dict__") and not callable(value):
        value = {key: one for key, one in vars(value).items() if not key.startswith("_")}
    if isinstance(value, Mapping):
        value = [(f"{name}.{key}", one) for key, one in value.items()]
    elif isinstance(value, (list, tuple)):
        value = [(f"{name}.{number}", one) for number, one in enumerate(value)]
    else:
        yield name, value
        return
    for place, one in value:
        yield from named_leaves(one, place, depth - 1)


def stored(value: Any) -> Any:
    """What an attribute holds, as a list where pytrees do not look inside."""
    return list(value) if isinstance(value, (set, collections.deque)) else value


def run_recorded(run: Callable[[], Any]) -> Any:
    """Run something; stacks end here."""
    return run()
