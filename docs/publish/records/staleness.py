"""Does a recorded number still belong to the code? Its hash is computed again (tests/benchmarks/source.py)."""

from functools import cache
from pathlib import Path

from docs.publish.kept import Kept, key
from docs.publish.records.schema import Sources
from tests.benchmarks import source
from tests.benchmarks.reached import named, reached
from tests.benchmarks.source import METHOD, ROOT, digest_texts

digests = Kept("digests")


def row_is_stale(sources: Sources, root: Path = ROOT) -> bool:
    """Whether the code timed, its case or the method differs from what a row or a sweep measured."""
    return _digest(tuple(sources.files), root) != sources.hash


def script_is_stale(script: str, sources: str, root: Path = ROOT) -> bool:
    """Whether a script, by its path, or something that it reaches differs from what a GPU ran."""
    try:
        files = reached(root, [root / script])
        return _kept(tuple((f.relative_to(root).as_posix(), f.read_text(encoding="utf-8")) for f in files)) != sources
    except (OSError, SyntaxError):
        return True


def forget() -> None:
    """Look at the files again: they may have changed since the last build."""
    _digest.cache_clear()
    named.cache_clear()


@cache
def _digest(files: tuple[str, ...], root: Path) -> str | None:
    """The hash as the code is now; None where a file is gone or broken."""
    try:
        return _kept(tuple((name, (root / name).read_text(encoding="utf-8")) for name in (*files, *METHOD)))
    except (OSError, SyntaxError):
        return None


@cache
def _kept(texts: tuple[tuple[str, str], ...]) -> str:
    """To parse takes longer than to read."""
    return digests.get(key(texts, _how()), lambda: digest_texts(texts))


@cache
def _how() -> str:
    """The code that makes a hash."""
    return Path(source.__file__).read_text(encoding="utf-8")
