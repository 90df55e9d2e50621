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
    first, *_ = _by_machine(kernel, root)
    return publishable_sweep(first, root), first


def elsewhere(kernel: str, root: Path) -> list[tuple[Sweep, Path]]:
    """The newest sweeps on other machines, with their files, that are of the code as it is."""
    found = []
    for file in _by_machine(kernel, root)[1:]:
        with contextlib.suppress(PublishError):  # one of an earlier schema is of earlier code, too
            if not changed(sweep := publishable_sweep(file, root), root):
                found.append((sweep, file))
    return found


def _by_machine(kernel: str, root: Path) -> list[Path]:
    """The newest file of each machine, such as 2026-11-26T06-06-13Z-nvidia-h200.json; the published machine's first."""
    folder = root / FOLDER / kernel
    files = {file.stem.partition("Z-")[2]: file for file in sorted(folder.glob("*.json"))}
    if not files:
        known = sorted(path.parent.name for path in folder.parent.glob("*/*.json"))
        raise unknown("sweep", kernel, dict.fromkeys(known))
    newest_first = sorted(files.values(), reverse=True)
    return sorted(newest_first, key=lambda file: file != files.get(PUBLISHED_MACHINE))


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
