"""What a build makes from texts alone and takes long is kept for the next one, by a hash of what it is made from."""

import hashlib
import json
import os
import threading
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from tests.benchmarks.source import ROOT

FOLDER = ROOT / ".cache" / "site"
Make = Callable[[], Any]
Function = TypeVar("Function", bound=Callable)
IN_A_BUILD: list[Any] = []  # functions whose results are kept until the next build


def key(*parts: object) -> str:
    """A name for what is made from these texts and numbers."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def write(path: Path, text: str) -> None:
    """Whole or not at all: whoever interrupts a build, or reads at the same time, finds no half of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def in_a_build(function: Function) -> Function:
    """As functools.cache, until the next build: files may have changed by then."""
    cached = cache(function)
    IN_A_BUILD.append(cached)
    return cached  # type: ignore[return-value]


def forget() -> None:
    """Read the files again."""
    for cached in IN_A_BUILD:
        cached.cache_clear()


def file(path: Path, make: Callable[[], str]) -> str:
    """What a file holds, which is made where it is not there."""
    if not path.exists():
        write(path, make())
    return path.read_text(encoding="utf-8")


class Kept:
    """Results as JSON has them, in one file, from which the next build drops what it did not ask for."""

    every: ClassVar[list["Kept"]] = []

    def __init__(self, name: str):
        self.path = FOLDER / f"{name}.json"
        self.used: dict[str, Any] = {}
        self.every.append(self)

    @cached_property
    def known(self) -> dict[str, Any]:
        """What the last build used."""
        try:
            return json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    def get(self, name: str, make: Make, holds: Callable[[Any], bool] = lambda value: True) -> Any:
        """What is kept under a name, if it still holds; else what is made now."""
        for there in (self.used, self.known):
            if name in there and holds(there[name]):
                self.used[name] = there[name]
                return there[name]
        self.used[name] = make()
        return self.used[name]

    def save(self) -> None:
        """Write what was used, unless it is there."""
        if self.used != self.known:
            write(self.path, json.dumps(self.used))


def save() -> None:
    """Write what this build has used, of all kinds."""
    for each in Kept.every:
        each.save()
