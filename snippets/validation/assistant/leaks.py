"""Lists, dicts and sets that a module's calls fill with tensors, more of them each time: no call gives that back.

They may be the module's, or those of what its hooks are bound to or refer to.
"""

import collections
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from .calls import tensors_of
from .lines import Line, is_library, matching
from .surroundings import file_of

OBJECTS, FIRST = 20_000, 1_000  # that are looked at, in all and of one container
Counts = dict[tuple[int, str], tuple[int, int, int]]  # by container: tensors, their bytes, how many have a graph
Key = tuple[int, str]  # of what has a name for the container, and the name


@dataclass(frozen=True)
class Leak:
    """What one container keeps of each call.

    Attributes:
        lines: that put something into it.
        count: tensors, of one call.
        bytes: of these.
        graph: whether they hold on to their graph.
        emptied: whether the code beside these lines empties it, though no call does.
    """

    name: str
    kind: str
    lines: tuple[Line, ...]
    count: int
    bytes: int
    graph: bool
    emptied: bool


class Containers:
    """All containers that a module's code can fill, by who names them."""

    def __init__(self, module: nn.Module):
        self.seen: dict[int, Any] = {}
        self.named: dict[Key, tuple[Any, Any]] = {}  # who names it, and the outermost container
        self.inner: dict[Key, list[Any]] = collections.defaultdict(list)
        self.functions: dict[types.CodeType, None] = {}
        for part in module.modules():
            self.walk(part, None, "")
            for kind in type(part).__mro__:
                self.of_class(kind)

    def walk(self, value: Any, owner: Any, name: str, depth: int = 0) -> None:
        if isinstance(value, Tensor) or id(value) in self.seen or len(self.seen) >= OBJECTS or depth > 40:
            return
        if isinstance(value, (list, dict, set, collections.deque)):
            self.seen[id(value)] = value
            if not getattr(value, "maxlen", None):
                self.named.setdefault((id(owner), name), (owner, value))
                self.inner[id(owner), name].append(value)
            for one in elements(value)[:FIRST]:
                self.walk(one, owner, name, depth + 1)
        elif isinstance(value, tuple):
            for one in value:
                self.walk(one, owner, name, depth + 1)
        elif isinstance(value, functools.partial):
            self.walk((value.func, value.args, value.keywords), owner, name, depth + 1)
        elif isinstance(value, types.MethodType):
            self.walk((value.__func__, value.__self__), owner, name, depth + 1)
        elif isinstance(value, types.FunctionType):
            self.of_function(value, depth)
        elif not isinstance(value, (type, types.ModuleType)) and getattr(value, "__dict__", None):
            self.of_object(value, depth)

    def of_object(self, value: Any, depth: int) -> None:
        """The attributes of a module, or of an object of the author's."""
        if not isinstance(value, nn.Module) and is_library(file_of(type(value))):
            return
        self.seen[id(value)] = value
        for key, one in [*vars(value).items()]:
            if not (isinstance(one, (list, dict, set)) and not one):  # most of a module's are empty
                self.walk(one, value, key, depth + 1)
        self.of_class(type(value))

    def of_function(self, function: types.FunctionType, depth: int = 0) -> None:
        """The variables of outer functions that a function names, and the containers among its globals."""
        if is_library(function.__code__.co_filename) or id(function) in self.seen:
            return
        self.seen[id(function)] = function
        self.functions[function.__code__] = None
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        for name, cell in cells:
            if (value := contents(cell)) is not None:
                self.walk(value, function, name, depth + 1)
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, (list, dict, set, collections.deque)):
                self.walk(value, function, name, depth + 1)

    def of_class(self, kind: type) -> None:
        if id(kind) in self.seen or is_library(file_of(kind)):
            return
        self.seen[id(kind)] = kind
        for name, value in [*vars(kind).items()]:
            value = getattr(value, "__func__", value)  # of a static or a class method
            if isinstance(value, (types.FunctionType, list, dict, set, collections.deque)):
                self.walk(inspect.unwrap(value) if callable(value) else value, kind, name)

    def counts(self) -> Counts:
        """Tensors in each container and in those inside it, their bytes, and how many of them have a graph."""
        found = {}
        for key, every in self.inner.items():
            held = [one for each in every for one in direct(each)]
            found[key] = len(held), sum(one.nbytes for one in held), sum(one.grad_fn is not None for one in held)
        return found


def leaks(module: nn.Module, before: Counts, call: Callable[[], Any]) -> list[Leak]:
    """What grew since the counts before a first call, and grows with two calls more; most modules need none of them."""
    counts = [before, Containers(module).counts()]
    for _ in range(2):
        if not growing(counts):
            return []
        call()
        last = Containers(module)
        counts.append(last.counts())
    return [leak_of(last, key, counts) for key in growing(counts)]


def growing(counts: list[Counts]) -> list[Key]:
    """The containers that each call found with fewer tensors."""
    none = 0, 0, 0
    numbers = {key: [one.get(key, none)[0] for one in counts] for key in counts[-1]}
    return [key for key, one in numbers.items() if all(a < b for a, b in pairwise(one))]


def leak_of(last: Containers, key: Key, counts: list[Counts]) -> Leak:
    owner, container = last.named[key]
    count, size, graphs = (new - old for new, old in zip(counts[-1][key], counts[-2][key], strict=True))
    kind = "deque" if isinstance(container, collections.deque) else type(container).__name__
    name = key[1]
    adds = rf"\b{name}(\[.*\])?\.(append|appendleft|add|extend|insert|update|setdefault)\("
    adds += rf"|\b{name}(\[.*\])+\s*\+?=(?!=)|\b{name}\s*\+="
    empties = rf"\b{name}\.(clear|pop|popleft|popitem|remove)\(|\bdel .*\b{name}\b|\b{name}\s*=(?!=)"
    functions = [*codes_of(owner), *last.functions]
    lines = [line for code in functions for line in matching(code, adds)]
    outside = [code for code in functions if code.co_name not in ("__init__", "<module>")]
    emptied = any(True for code in outside for _ in matching(code, empties))
    lines = lines or [Line(code.co_filename, code.co_firstlineno, code.co_name) for code in functions[:1]]
    return Leak(name, kind, tuple(dict.fromkeys(lines)), count, size, graphs > 0, emptied)


def codes_of(owner: Any) -> list[types.CodeType]:
    """The code that may fill what an owner has a name for."""
    if isinstance(owner, types.FunctionType):
        return [owner.__code__]
    kinds = (owner if isinstance(owner, type) else type(owner)).__mro__
    methods = [getattr(one, "__func__", one) for kind in kinds for one in vars(kind).values()]
    codes = [getattr(inspect.unwrap(one), "__code__", None) for one in methods if callable(one)]
    return [code for code in codes if code is not None and not is_library(code.co_filename)]


def elements(container: Any) -> list[Any]:
    return [*container.values()] if isinstance(container, dict) else [*container]


def direct(container: Any) -> Iterator[Tensor]:
    """The tensors of a container, also in tuples; other containers in it count for themselves."""
    for one in elements(container):
        if isinstance(one, (Tensor, tuple)) or dataclasses.is_dataclass(one):
            held = vars(one) if dataclasses.is_dataclass(one) and hasattr(one, "__dict__") else one
            yield from (leaf for leaf in tensors_of(held) if type(leaf) is not nn.Parameter)


def contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is in it yet
        return None
