"""Builtins of `triton.language`, interpreted: what is known of a call's types and constants is found out once.

A builtin checks the types of its arguments, converts and spreads them, and asks a builder for operations. Interpreted,
this takes several times as long as the operations, which numpy does. But which operations they are depends on types and
constants alone: the first call with the like of them is recorded, and later ones do the operations again.
"""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import triton.language as tl
from triton.runtime import interpreter

CONSTANTS: dict[int, object] = {}  # by id: handles that would be the same again, kept so that no other gets the id
FOLDED = (  # how operations begin that make such a handle where they get no other
    "get_", "create_splat", "create_make_range", "create_expand_dims", "create_broadcast", "create_reshape",
    "create_add", "create_sub", "create_mul", "create_icmp", "create_int_cast", "create_si_to_fp",
)  # fmt: skip
SPREAD = {"create_splat": 1, "create_broadcast": 0}  # operations that repeat an argument, and its place
ELEMENTWISE = {"create_addptr", "create_fma"} | {  # numpy spreads their operands by itself
    name
    for name, operation in vars(interpreter.InterpreterBuilder).items()
    if getattr(operation, "__name__", "") == "<lambda>" and name != "create_reshape"
}


class Unknown(Exception):
    """On an argument of this kind more may depend than is looked at here."""


@functools.cache
def recorded(builtin: Callable) -> Callable:
    """A builtin that looks for what it does in calls with the like of its arguments."""
    semantic, builder = interpreter.interpreter_semantic, interpreter.interpreter_builder
    recordings: dict[tuple, Callable | None] = {}

    def called(*arguments, **options):
        return builtin(*arguments, **options, _semantic=semantic)

    def interpreted(*arguments, **options):
        options.pop("_semantic", None)
        if semantic.builder is not builder:  # within a call that is being recorded
            return called(*arguments, **options)
        kinds, handles = [], []
        try:
            for each in (*arguments, *options.values()):
                if type(each) is not tl.tensor:
                    kinds.append(value_of(each))
                elif id(each.handle) in CONSTANTS:
                    kinds.append(id(each.handle))
                else:
                    kinds.append(each.type.name)
                    handles.append(each.handle)
        except Unknown:
            return called(*arguments, **options)
        key = (builder.options.debug, *options, *kinds)
        if again := recordings.get(key):
            return again(*handles)
        if key in recordings:
            return called(*arguments, **options)
        semantic.builder = recorder = Recorder(builder)
        try:
            own = [recorder.own(each) for each in arguments]  # before the options, as in `handles`
            returned = called(*own, **{name: recorder.own(each) for name, each in options.items()})
        finally:
            semantic.builder = builder
        recordings[key] = recorder.recording(returned)
        return returned

    return interpreted


def value_of(argument: object) -> tuple:
    """A constant as part of a key: True is no 1, and NaN is NaN."""
    of = type(argument)
    if of in (int, bool, str, type(None)):
        return of, argument
    if of is float:
        return of, argument.hex()
    if of in (tuple, list):
        return of, *map(value_of, argument)
    if of is slice:
        return of, value_of((argument.start, argument.stop, argument.step))
    if isinstance(argument, tl.dtype):
        return of, argument.name
    raise Unknown


@dataclass(frozen=True)
class Call:
    """Of an operation of the builder."""

    name: str
    operation: Callable
    arguments: tuple
    result: object


class Recorder:
    """The builder, with a note of what it is asked for. What follows from constants alone becomes a constant."""

    def __init__(self, builder: interpreter.InterpreterBuilder):
        self.builder, self.handles, self.calls, self.known = builder, [], [], True
        self.varying: dict[int, object] = {}  # by id: handles that would be others again
        self.spread: dict[int, object] = {}  # by id of the result: what was repeated

    def own(self, argument: object) -> object:
        """An argument with a handle that no other has: what is recorded of x * x is not always a square."""
        if type(argument) is not tl.tensor or id(argument.handle) in CONSTANTS:
            return argument
        handle = copy.copy(argument.handle)
        self.handles.append(handle)
        self.varying[id(handle)] = handle
        return tl.tensor(handle, argument.type)

    def __getattr__(self, name: str) -> object:
        member = getattr(self.builder, name)
        return functools.partial(self.noted, name, member) if callable(member) else member

    def noted(self, name: str, operation: Callable, *arguments: object) -> object:
        self.known &= all(map(self.is_known, arguments))
        result = operation(*arguments)
        if name.startswith(FOLDED) and not any(id(each) in self.varying for each in arguments):
            CONSTANTS[id(result)] = result
        else:
            self.calls.append(Call(name, operation, arguments, result))
            self.varying.update((id(each), each) for each in several(result))
        if name in SPREAD:
            self.spread[id(result)] = arguments[SPREAD[name]]
        return result

    def is_known(self, argument: object) -> bool:
        """Whether it is no handle, or comes from the builder or the arguments: is not computed beside them."""
        if isinstance(argument, (tuple, list)):
            return not any(isinstance(each, interpreter.TensorHandle) for each in argument)
        found = id(argument) in self.varying or id(argument) in CONSTANTS
        return found or not isinstance(argument, interpreter.TensorHandle)

    def recording(self, returned: object) -> Callable | None:
        """A function of other handles that returns the like; None where that is not known."""
        tensors = several(returned)
        if not self.known or not all(type(each) is tl.tensor and self.is_known(each.handle) for each in tensors):
            return None
        return self.without_spreading(returned) or written(self.handles, self.calls, returned)

    def without_spreading(self, returned: object) -> Callable | None:
        """The same, where all it does is elementwise and numpy spreads operands as far."""
        calls = [call for call in self.calls if call.name not in SPREAD]
        elementwise = all(call.name in ELEMENTWISE for call in calls)
        if type(returned) is not tl.tensor or not elementwise or id(returned.handle) in {*self.spread, *CONSTANTS}:
            return None

        def source(each: object) -> object:
            return source(self.spread[id(each)]) if id(each) in self.spread else each

        calls = [replace(call, arguments=tuple(map(source, call.arguments))) for call in calls]
        shorter = written(self.handles, calls, returned)
        return shorter if shorter(*self.handles).handle.data.shape == returned.handle.data.shape else None


def several(returned: object) -> tuple:
    return returned if type(returned) is tuple else () if returned is None else (returned,)


def written(handles: list, calls: list[Call], returned: object) -> Callable:
    """The calls as the source of a function of the handles: nothing takes less time than that."""
    scope: dict[str, object] = {"tensor": tl.tensor}
    names = {id(handle): f"handle_{number}" for number, handle in enumerate(handles)}
    parameters = ", ".join(names.values())

    def name(each: object) -> str:
        if id(each) not in names:
            names[id(each)] = f"constant_{len(names)}"
            scope[names[id(each)]] = each
        return names[id(each)]

    lines = []
    for number, call in enumerate(calls):
        scope[f"operation_{number}"] = call.operation
        line = f"operation_{number}({', '.join(map(name, call.arguments))})"
        for part, each in enumerate(several(call.result)):
            names[id(each)] = f"result_{number}_{part}"
        results = "".join(f"{names[id(each)]}, " for each in several(call.result))
        lines.append(f"{results if type(call.result) is tuple else results[:-2]} = {line}" if results else line)
    made = [f"tensor({name(each.handle)}, {name(each.type)})" for each in several(returned)]
    lines.append(f"return ({', '.join(made)},)" if type(returned) is tuple else f"return {''.join(made) or None}")
    exec("\n    ".join([f"def again({parameters}):", *lines]), scope)
    return scope["again"]
