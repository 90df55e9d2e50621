"""What case files give to pages beside records: their named points, and their bounds."""

import importlib
import runpy
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter

from docs.publish.errors import unknown
from docs.publish.kept import Kept
from docs.publish.place import case_file
from docs.publish.records.measured import Coordinates
from docs.publish.records.staleness import code_as_it_is
from tests.benchmarks.bounds import Bound
from tests.benchmarks.runner import discover, size
from tests.benchmarks.source import ROOT

WALL, ON_A_GPU = "calls", "device"
CLOCKS = {"wall": WALL, "gpu": "", "graph": "graph", "burst": "burst", "sustained": "sustained"}
BOUNDS = TypeAdapter(dict[str, Bound])
imported = Kept("cases")  # to import them takes seconds


def points(root: Path, case: str) -> Mapping[str, list[Coordinates]]:
    """The points of a case by their names, each in its modes; that on a GPU, if one on a CPU has the same name.

    Raises:
        PublishError: there is no such case.
    """
    if not case_file(root, case).is_file():
        raise unknown("case", case, discover(root))
    return {name: [Coordinates(case, **at) for at in modes] for name, modes in _of_file(root, case)["points"].items()}


def at(root: Path, case: str, name: str, clock: str = "") -> Coordinates:
    """Where a named point stands among all that was measured.

    Args:
        root: of the repository.
        clock: of CLOCKS, "gpu" for the first of the point's modes that is the GPU's; the very first one if empty.

    Raises:
        PublishError: the case, the point or the clock is not known.
    """
    known = points(root, case)
    if name not in known:
        raise unknown(f"point of {case}", name, known)
    if clock and clock not in CLOCKS:
        raise unknown("clock", clock, CLOCKS)
    first, *others = known[name]
    if clock == "gpu":
        return next((one for one in (first, *others) if one.mode != WALL), replace(first, mode=ON_A_GPU))
    return replace(first, mode=CLOCKS[clock]) if clock else first


def bounds(root: Path, case: str) -> Mapping[str, Bound]:
    """The bounds of a case by their names, or of the file of a page that has no case; empty if there is no file."""
    return BOUNDS.validate_python(_of_file(root, case)["bounds"] if case_file(root, case).is_file() else {})


@cache
def _of_file(root: Path, case: str) -> dict[str, Any]:
    return imported.get(f"{code_as_it_is(root)} {root / case}", lambda: _import(case_file(root, case)))


def _import(path: Path) -> dict[str, Any]:
    if path.is_relative_to(ROOT):
        names = vars(importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)))
    else:
        names = runpy.run_path(str(path))
    made = [p for device in ("cpu", "cuda") if "CASE" in names for p in names["points"](torch.device(device))]
    named = {
        p.name: [
            {"direction": p.direction, "shape": size(p.part, p.shape), "dtype": p.dtype, "mode": mode}
            for mode in p.modes
        ]
        for p in made
        if p.name
    }
    return {"points": named, "bounds": {name: asdict(of) for name, of in names.items() if isinstance(of, Bound)}}
