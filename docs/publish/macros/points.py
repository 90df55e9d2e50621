"""Points of a case by the names that it gives them."""

from dataclasses import replace
from pathlib import Path

from docs.publish.errors import unknown
from docs.publish.records import cases
from docs.publish.records.measured import Coordinates

WALL, ON_A_GPU = "calls", "device"
CLOCKS = {"wall": WALL, "gpu": "", "graph": "graph", "burst": "burst", "sustained": "sustained"}


def at(root: Path, case: str, name: str, clock: str = "") -> Coordinates:
    """Where a named point stands among all that was measured.

    Args:
        root: of the repository.
        clock: of CLOCKS, "gpu" for the first of the point's modes that is the GPU's; the very first one if empty.

    Raises:
        PublishError: the case, the point or the clock is not known.
    """
    known = cases.points(root, case)
    if name not in known:
        raise unknown(f"point of {case}", name, known)
    if clock and clock not in CLOCKS:
        raise unknown("clock", clock, CLOCKS)
    first, *others = known[name]
    if clock == "gpu":
        return next((one for one in (first, *others) if one.mode != WALL), replace(first, mode=ON_A_GPU))
    return replace(first, mode=CLOCKS[clock]) if clock else first
