"""What a module changes outside itself is put back: lists, objects, generators and files that its code can reach.

Only copies of a module run, but a copy's hooks and functions are those of the original, and so is what they refer to.
"""

import collections
import contextlib
import dis
import functools
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .calls import named_leaves
from .lines import is_library, shortened
from .settings import AFTERWARDS
from .subject import Subject, original

LARGEST = 2**28  # bytes of tensors, or of a file, that are kept
OBJECTS = 20_000  # that are looked at
UNDONE = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "subprocess.Popen", "socket.connect", "shutil.rmtree")
COMPILERS = (os.path.join("torch", "_"), os.path.join("torch", "utils", "_"), "triton")  # parts of paths
LAYERS = os.path.join("torch", "nn")
METHODS = (staticmethod, classmethod)
PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, range)


class Surroundings:
    """All that the code of some modules and inputs refers to, with what it held at first.

    Attributes:
        problems: what could not be put back.
    """

    def __init__(self, subjects: list[Subject]):
        self.seen: dict[int, Any] = {}
        self.restores: list[Callable[[], None]] = []
        self.problems: list[str] = []
        self.files: dict[str, bytes | None] = {}
        self.room = LARGEST
        todo: list[Any] = []
        for subject in subjects:
            for part in original(subject.module).modules():
                kinds = [kind for kind in type(part).__mro__ if not foreign(file_of(kind))]
                todo += [*kinds, *(one for _, one in named_callables(vars(part)))]
            copied = (Tensor, *PLAIN)
            todo += [one for _, one in named_leaves((subject.inputs, subject.named), "") if not isinstance(one, copied)]
        while todo and len(self.seen) < OBJECTS:
            one = todo.pop()
            if id(one) not in self.seen and not isinstance(one, PLAIN):
                self.seen[id(one)] = one
                todo += self.keep(one)

    def keep(self, one: Any) -> list[Any]:
        """Note how to put an object back; what it refers to is next."""
        if isinstance(one, functools.partial):
            return [one.func, *one.args, *one.keywords.values()]
        if isinstance(one, types.MethodType):
            return [one.__func__, one.__self__]
        if isinstance(one, types.FunctionType):
            return self.of_function(one) if not foreign(one.__code__.co_filename) else []
        if isinstance(one, (list, dict, set, collections.deque, bytearray)):
            self.restores.append(functools.partial(refill, one, one.copy()))
            return [*one.values()] if isinstance(one, dict) else [*one]
        if isinstance(one, tuple):
            return [*one]
        if isinstance(one, Tensor):
            return self.of_tensor(one)
        for get, put in (("get_state", "set_state"), ("getstate", "setstate")):  # generators of torch, NumPy and Python
            if hasattr(one, get) and hasattr(one, put):
                self.restores.append(functools.partial(getattr(one, put), getattr(one, get)()))
                return []
        if hasattr(one, "bit_generator"):
            state = one.bit_generator.state
            self.restores.append(lambda: setattr(one.bit_generator, "state", state))
            return []
        return self.of_object(one)

    def of_function(self, function: types.FunctionType) -> list[Any]:
        """The globals and the variables of outer functions that its code names, which it may bind anew."""
        names = {one for code in codes(function.__code__) for one in code.co_names}
        own = {name: function.__globals__[name] for name in names if name in function.__globals__}
        self.restores.append(functools.partial(rebind, function.__globals__, own, bound_by(function.__code__)))
        cells = [cell for cell in function.__closure__ or () if not empty(cell)]
        self.restores += [functools.partial(setattr, cell, "cell_contents", cell.cell_contents) for cell in cells]
        modules = [one for one in own.values() if isinstance(one, types.ModuleType) and not foreign(file_of(one))]
        inside = [vars(one)[name] for one in modules for name in names if name in vars(one)]
        values = [one for one in own.values() if not isinstance(one, types.ModuleType)]
        return [*values, *inside, *(cell.cell_contents for cell in cells), *(function.__defaults__ or ())]

    def of_tensor(self, tensor: Tensor) -> list[Any]:
        if tensor.is_inference() or tensor.layout != torch.strided:
            return []
        version, gradient = tensor._version, tensor.grad if tensor.is_leaf else None
        self.room -= tensor.nbytes
        kept = tensor.detach().clone() if self.room >= 0 else None

        def restore() -> None:
            if tensor.is_leaf:
                tensor.grad = gradient
            if tensor._version != version and kept is None:
                self.problem(f"a tensor of shape {tuple(tensor.shape)} outside of the module was written to")
            elif tensor._version != version and kept is not None and not torch.equal(tensor, kept):
                tensor.data.copy_(kept)

        self.restores.append(restore)
        return []

    def of_object(self, one: Any) -> list[Any]:
        """Attributes of an object or a class that is neither PyTorch's nor Python's."""
        kind = one if isinstance(one, type) else type(one)
        own = getattr(one, "__dict__", None)
        if (
            own is None
            or isinstance(one, types.ModuleType)
            or (foreign(file_of(kind)) and not isinstance(one, nn.Module))
        ):
            return []
        if not isinstance(one, type):
            self.restores.append(functools.partial(refill, own, own.copy()))
            return [type(one), *own.values()]
        plain = {name: value for name, value in own.items() if not name.startswith("__") and not callable(value)}
        plain = {name: value for name, value in plain.items() if not isinstance(value, (property, *METHODS))}
        self.restores.append(functools.partial(reset, one, plain))
        unwrapped = [getattr(value, "__func__", value) for value in own.values()]
        return [value for value in unwrapped if isinstance(value, types.FunctionType)] + [*plain.values()]

    def problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)

    def restore(self) -> None:
        for restore in self.restores:
            try:
                restore()
            except Exception as error:  # noqa: BLE001  # an object may refuse in any way
                self.problem(f"{type(error).__name__} while an object outside of the module was put back: {error}")
        for name, content in self.files.items():
            with contextlib.suppress(OSError):
                path = Path(name)
                if content is None:
                    path.unlink(missing_ok=True)
                elif path.read_bytes() != content:
                    path.write_bytes(content)

    def event(self, name: str, args: tuple) -> None:
        """What Python tells before it opens a file, starts a process and the like."""
        if name == "open" and isinstance(args[0], (str, bytes, os.PathLike)):
            writes = isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
            path = os.path.abspath(os.fsdecode(args[0]))
            if writes and path not in self.files and by_author():
                self.note_file(path)
        elif name in UNDONE and by_author():
            self.problem(f"{name} of {', '.join(str(one) for one in args[:1])} was not undone")

    def note_file(self, path: str) -> None:
        if not os.path.exists(path):
            self.files[path] = None
        elif os.path.isfile(path) and os.path.getsize(path) <= LARGEST:
            with contextlib.suppress(OSError), WATCHED.paused():
                self.files[path] = Path(path).read_bytes()
                return
        else:
            self.problem(f"{shortened(path)} was written to, and is not put back")


class Watched:
    """Python's audit hook, which cannot be taken off again: it does something only while there are surroundings."""

    def __init__(self) -> None:
        self.hooked, self.current = False, None

    def __call__(self, name: str, args: tuple) -> None:
        if self.current is not None and (name == "open" or name in UNDONE):
            with self.paused() as current:
                current.event(name, args)

    @contextlib.contextmanager
    def paused(self) -> Iterator[Any]:
        current, self.current = self.current, None
        try:
            yield current
        finally:
            self.current = current


WATCHED = Watched()


@contextlib.contextmanager
def restored(subjects: list[Subject]) -> Iterator[list[str]]:
    """Whatever the modules change outside themselves is put back, after each run and at the end."""
    around = Surroundings(subjects)
    if not WATCHED.hooked:
        WATCHED.hooked = True
        sys.addaudithook(WATCHED)

    def restore() -> None:
        with WATCHED.paused():
            around.restore()

    before, WATCHED.current = WATCHED.current, around
    AFTERWARDS.append(restore)
    try:
        yield around.problems
    finally:
        AFTERWARDS.remove(restore)
        restore()
        WATCHED.current = before


def named_callables(attributes: dict) -> Iterator[tuple[str, Any]]:
    """Functions and hooks among the attributes of a module."""
    for name, leaf in named_leaves({key: value for key, value in attributes.items() if key != "_modules"}, ""):
        if callable(leaf) and not isinstance(leaf, (nn.Module, Tensor, type)):
            yield name, leaf


def refill(container: Any, before: Any) -> None:
    """Put a container's content back, if it is another."""
    if isinstance(container, dict):
        same = list(container) == list(before) and all(container[key] is before[key] for key in before)
    else:
        same = len(container) == len(before) and all(one is other for one, other in zip(container, before, strict=True))
    if not same:
        container.clear()
        container.extend(before) if hasattr(container, "extend") else container.update(before)


def reset(kind: type, before: dict) -> None:
    """Put class attributes back that are bound to something else."""
    for name, value in before.items():
        if vars(kind).get(name) is not value:
            setattr(kind, name, value)


def rebind(namespace: dict, before: dict, bound: set[str]) -> None:
    for name in bound:
        if name in before:
            namespace[name] = before[name]
        else:
            namespace.pop(name, None)


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from codes(one)


def bound_by(code: types.CodeType) -> set[str]:
    """The globals that a function binds."""
    return {one.argval for each in codes(code) for one in dis.get_instructions(each) if one.opname == "STORE_GLOBAL"}


def empty(cell: Any) -> bool:
    try:
        return cell.cell_contents is None
    except ValueError:
        return True


def file_of(thing: Any) -> str:
    """Where a class or a module stands; what has no file is Python's own."""
    module = thing if isinstance(thing, types.ModuleType) else sys.modules.get(getattr(thing, "__module__", ""))
    return getattr(module, "__file__", None) or "<unknown>"


def foreign(file: str) -> bool:
    """Whether a file is installed, and not of somebody's own project."""
    return is_library(file) or "site-packages" in file


def by_author() -> bool:
    """Whether the code that asks for a file is somebody's own: neither a compiler's nor of what that calls."""
    frame, installed = sys._getframe(1), False
    while frame is not None:
        file = frame.f_code.co_filename
        if any(part in file for part in COMPILERS):
            return False
        if not is_library(file):
            if not foreign(file):
                return True
            installed = True  # a package, for whoever called it
        elif installed and LAYERS in file:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return installed
