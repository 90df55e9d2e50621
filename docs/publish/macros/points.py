"""Points of a case by the names that its file gives them.

Direction, what runs where the case measures several things, shape, dtype, and the mode of the main clock:
POINTS = {"gelu": "both gelu 8192x4096 bfloat16 device"}
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from docs.publish.errors import PublishError, unknown
from docs.publish.place import case_file
from docs.publish.records.measured import Coordinates
from tests.benchmarks import source
from tests.benchmarks.runner import discover

WALL, ON_A_GPU = "calls", "device"
CLOCKS = {"wall": WALL, "gpu": "", "graph": "graph", "burst": "burst", "sustained": "sustained"}


def at(root: Path, case: str, name: str, clock: str = "") -> Coordinates:
    """Where a named point stands among all that was measured.

    Args:
        root: of the repository.
        clock: of CLOCKS; the point's main clock if empty.

    Raises:
        PublishError: the case, the point or the clock is not known.
    """
    known = of_case(root, case)
    if name not in known:
        raise unknown(f"point of {case}", name, known)
    if clock and clock not in CLOCKS:
        raise unknown("clock", clock, CLOCKS)
    found = replace(known[name], case=case)
    if clock == "gpu":
        return replace(found, mode=ON_A_GPU) if found.mode == WALL else found
    return replace(found, mode=CLOCKS[clock]) if clock else found


def of_case(root: Path, case: str) -> Mapping[str, Coordinates]:
    """The named points of a case.

    Raises:
        PublishError: there is no such case, or it says of a point something else than direction, shape, dtype and mode.
    """
    path = case_file(root, case)
    if not path.is_file():
        raise unknown("case", case, discover(root))
    return _read(path)


@cache
def _read(path: Path) -> Mapping[str, Coordinates]:
    found = {}
    for name, text in source.points(path).items():
        direction, *size, dtype, mode = text.split() if text.count(" ") > 2 else ("", "", "")
        if not re.fullmatch(r"(\d+x)*\d+", size[-1] if size else ""):
            raise PublishError(f'{path.name}: point {name!r}: expected "direction part shape dtype mode", got {text!r}')
        found[name] = Coordinates(direction=direction, shape=" ".join(size), dtype=dtype, mode=mode)
    return found
