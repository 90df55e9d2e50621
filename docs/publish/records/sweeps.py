"""The recorded sweeps: what was tried beside each entry of a kernel's launch table (tests/benchmarks/sweeps)."""

import contextlib
from pathlib import Path

from docs.publish.errors import PublishError, unknown
from docs.publish.records import staleness
from docs.publish.records.admission import publishable_sweep
from docs.publish.records.measured import PUBLISHED_MACHINE
from docs.publish.records.schema import Sweep

FOLDER = "docs/measurements/sweeps"


def newest(kernel: str, root: Path) -> tuple[Sweep, Path]:
    """The newest sweep of a kernel on the published machine, else on any, and its file.

    Raises:
        PublishError: there is none, it is not whole, or it may not be published.
    """
    files = _by_machine(kernel, root)
    file = files.get(PUBLISHED_MACHINE) or max(files.values())
    return publishable_sweep(file, root), file


def elsewhere(kernel: str, root: Path) -> list[tuple[Sweep, Path]]:
    """The newest sweeps on other machines, with their files, that are of the code as it is."""
    _, first = newest(kernel, root)
    found = []
    for file in _by_machine(kernel, root).values():
        with contextlib.suppress(PublishError):  # one of an earlier schema is of earlier code, too
            if file != first and not changed(sweep := publishable_sweep(file, root), root):
                found.append((sweep, file))
    return found


def _by_machine(kernel: str, root: Path) -> dict[str, Path]:
    """The newest file of each machine: 2026-11-26T06-06-13Z-nvidia-h200.json is of "nvidia-h200"."""
    folder = root / FOLDER / kernel
    files = {file.stem.partition("Z-")[2]: file for file in sorted(folder.glob("*.json"))}
    if not files:
        known = sorted(path.parent.name for path in folder.parent.glob("*/*.json"))
        raise unknown("sweep", kernel, dict.fromkeys(known))
    return files


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
