"""`package.module:factory` or `path/file.py:factory`: what it gives, or one clear line."""

import collections
import importlib.util
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from .lines import is_ours
from .subject import Refused, Subject, one_line, refusing


def load(spec: str) -> Subject:
    """A module, and the inputs of a call.

    Raises:
        Refused: there is no such module or factory, it raises, or gives something else.
    """
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise Refused(f"expected package.module:factory or path/file.py:factory, got {spec!r}")
    module = imported(place)
    with refusing(spec):
        factory = getattr(module, name, None)
        if not callable(factory):
            known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            raise Refused(f"{place} has no factory {name!r}; it has {', '.join(sorted(known)[:20]) or 'none at all'}")
        return subject_of(factory(), spec)


def imported(place: str) -> ModuleType:
    """A module by its name, or by the path of its file."""
    if place.endswith(".py") and not Path(place).is_file():
        raise Refused(f"there is no file {place}")
    try:
        if place.endswith(".py"):
            return of_file(Path(place).resolve())
        beside(os.getcwd())
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # an import runs anything
        raise Refused(f"{place} cannot be imported: {type(error).__name__}: {one_line(error)}") from None


FOLDERS: set[Path] = set()  # of which a file was run


def of_file(file: Path) -> ModuleType:
    """A file as Python would run it: it can import what lies beside it, and inside a package what `.` leads to."""
    root, name = file.parent, file.stem
    while (root / "__init__.py").is_file():
        root, name = root.parent, f"{root.name}.{name}"
    for folder in (root, file.parent):
        forget_others(folder)
        beside(str(folder))
    if file_of(sys.modules.get(name)) == file:
        return sys.modules[name]
    return importlib.import_module(name) if root != file.parent else run(file)


def run(file: Path) -> ModuleType:
    """By its path, since a library may have its name."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    known = sys.modules.setdefault(file.stem, module)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if known is module:
            del sys.modules[file.stem]
        raise
    return module


def beside(folder: str) -> None:
    """Imports look into a folder first."""
    sys.path[:] = [folder, *(one for one in sys.path if one != folder)]


def forget_others(folder: Path) -> None:
    """`before/model.py` and `after/model.py` each have their own `layers`: the first's is not the second's."""
    own = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in own or not (file := file_of(module)) or is_ours(str(file)):
            continue
        if not file.is_relative_to(folder) and any(file.is_relative_to(other) for other in FOLDERS):
            del sys.modules[name]
    FOLDERS.add(folder)


def file_of(module: object) -> Path | None:
    file = getattr(module, "__file__", None) if isinstance(module, ModuleType) else None
    return Path(file).resolve() if isinstance(file, str) else None


def subject_of(made: Any, spec: str) -> Subject:
    """From what a factory gave: `module, input, …`, with keywords in a dictionary at the end, or `module, inputs`.

    `inputs` is a tuple or list, in which every dictionary is an input, a dictionary of keywords, or a function that
    returns one of these or a single input. So `module, batch` calls `module(**batch)`, and `module, (batch,)` calls
    `module(batch)`.
    """
    if isinstance(made, nn.Module):
        return Subject(made, (), {})
    if inspect.iscoroutine(made):
        made.close()  # else Python warns that nobody awaited it
    if not isinstance(made, (tuple, list)) or not made or not isinstance(made[0], nn.Module):
        raise Refused(f"{spec}: expected a module and its inputs, as in `return model, x`, got {type(made).__name__}")
    module, *inputs = made
    if len(inputs) == 1 and callable(inputs[0]) and not isinstance(inputs[0], nn.Module):
        inputs = [inputs[0]()]
    named = dict(inputs.pop()) if inputs and holds_keywords(inputs[-1]) else {}
    if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)) and not hasattr(inputs[0], "_fields"):
        inputs = list(inputs[0])
    return Subject(module, tuple(inputs), named)


def holds_keywords(value: Any) -> bool:
    return isinstance(value, (dict, collections.UserDict)) and all(isinstance(key, str) for key in value)
