"""What case files give to pages beside records: the site imports them, for their named points and their bounds."""

import importlib
import runpy
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from docs.publish.errors import unknown
from docs.publish.place import case_file
from tests.benchmarks.bounds import Bound
from tests.benchmarks.case import Point
from tests.benchmarks.runner import discover
from tests.benchmarks.source import ROOT


def points(root: Path, case: str) -> Mapping[str, Point]:
    """The points of a case by their names; of several with one name the first, those on a GPU before those on a CPU.

    Raises:
        PublishError: there is no such case.
    """
    path = case_file(root, case)
    if not path.is_file():
        raise unknown("case", case, discover(root))
    return _points(path)


@cache
def _points(path: Path) -> Mapping[str, Point]:
    made = [point for device in ("cuda", "cpu") for point in _names(path)["CASE"].points(torch.device(device))]
    return {point.name: point for point in reversed(made) if point.name}


def bounds(root: Path, case: str) -> Mapping[str, Bound]:
    """The bounds of a case by their names, or of the file of a page that has no case; empty if there is no file."""
    path = case_file(root, case)
    found = _names(path) if path.is_file() else {}
    return {name: value for name, value in found.items() if isinstance(value, Bound)}


@cache
def _names(path: Path) -> Mapping[str, Any]:
    """What a file defines."""
    if not path.is_relative_to(ROOT):
        return runpy.run_path(str(path))
    return vars(importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)))
