"""The recorded sweeps: what was tried beside each entry of a kernel's launch table (tests/benchmarks/sweeps)."""

from pathlib import Path

from docs.publish.errors import unknown
from docs.publish.records import staleness
from docs.publish.records.admission import publishable_sweep
from docs.publish.records.schema import Sweep

FOLDER = "docs/measurements/sweeps"


def newest(kernel: str, root: Path) -> tuple[Sweep, Path]:
    """The newest sweep of a kernel, and its file.

    Raises:
        PublishError: there is none, it is not whole, or it may not be published.
    """
    folder = root / FOLDER / kernel
    files = sorted(folder.glob("*.json"))
    if not files:
        known = sorted(path.parent.name for path in folder.parent.glob("*/*.json"))
        raise unknown("sweep", kernel, dict.fromkeys(known))
    return publishable_sweep(files[-1], root), files[-1]


def changed(sweep: Sweep, root: Path) -> str:
    """What has changed since, of the kernel, its case, the plan and the method: as for a row."""
    return staleness.changed(sweep.sources, root)


def stale(root: Path) -> list[str]:
    """The files of the newest sweeps that are stale, shown on a page or not.

    Raises:
        PublishError: see `newest`.
    """
    kernels = sorted({path.parent.name for path in (root / FOLDER).glob("*/*.json")})
    found = (newest(kernel, root) for kernel in kernels)
    return [path.relative_to(root).as_posix() for sweep, path in found if changed(sweep, root)]
