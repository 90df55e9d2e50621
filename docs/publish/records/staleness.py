"""Does a recorded number still belong to the code? Its hash is computed again (tests/benchmarks/source.py)."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from docs.publish.records.schema import Sources
from tests.benchmarks.source import ROOT, digest, digest_texts


def row_is_stale(sources: Sources, root: Path = ROOT) -> bool:
    """Whether the code timed, its case or the method differs from what a row or a sweep measured."""
    *measured, case = sources.files
    return _digest(case, tuple(measured), root) != sources.hash


def capture_is_stale(sources: Sources, root: Path = ROOT) -> bool:
    """Whether the code that printed a capture has changed since."""
    try:
        return _digest_of_texts(tuple((name, (root / name).read_text()) for name in sources.files)) != sources.hash
    except (OSError, SyntaxError):
        return True


def forget() -> None:
    """Look at the files again: they may have changed since the last build."""
    _digest.cache_clear()


@cache
def _digest(case: str, measured: Iterable[str], root: Path) -> str | None:
    """The hash as the code is now; None where a file is gone or broken."""
    try:
        return digest(case, measured, root)
    except (OSError, SyntaxError):
        return None


@cache
def _digest_of_texts(texts: tuple[tuple[str, str], ...]) -> str:
    """To parse takes longer than to read, and many captures are of one script."""
    return digest_texts(texts)
