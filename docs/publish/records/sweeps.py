"""The recorded sweeps: what was tried beside each entry of a kernel's launch table (tests/benchmarks/sweeps)."""

from pathlib import Path

from docs.publish.errors import unknown
from docs.publish.records.schema import Sweep, read


def newest(kernel: str, root: Path) -> tuple[Sweep, Path]:
    """The newest sweep of a kernel, and its file.

    Raises:
        PublishError: there is none, or it is not whole.
    """
    folder = root / "docs" / "measurements" / "sweeps" / kernel
    files = sorted(folder.glob("*.json"))
    if not files:
        known = sorted(path.parent.name for path in folder.parent.glob("*/*.json"))
        raise unknown("sweep", kernel, dict.fromkeys(known))
    return read(files[-1], Sweep, root), files[-1]
