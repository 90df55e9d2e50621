"""Which records of runs and sweeps are read at all, and which may be published."""

from pathlib import Path
from typing import TypeVar

from docs.publish.errors import PublishError
from docs.publish.records import datasheets
from docs.publish.records.schema import Record, Sweep, read, shown
from tests.benchmarks.source import ROOT

Published = TypeVar("Published", Record, Sweep)


def checked(path: Path, root: Path = ROOT) -> Record:
    """A run record that is whole and claims nothing impossible, known by its file's name from here on.

    The first runs that began in one second, on several GPUs of a machine, wrote one id.

    Raises:
        PublishError: see schema.read and datasheets.check; the message names the file.
    """
    record = read(path, Record, root).changed(id=path.stem)
    try:
        datasheets.check(record)
    except PublishError as error:
        raise PublishError(f"{shown(path, root)}: {error}") from error
    return record


def publishable(path: Path, root: Path = ROOT) -> Record:
    """A run record that may be published: of committed code, too.

    Raises:
        PublishError: see `checked`; or it was measured in a tree with changes that are not committed.
    """
    return _of_a_commit(checked(path, root), path, root)


def publishable_sweep(path: Path, root: Path = ROOT) -> Sweep:
    """A sweep that may be published.

    Raises:
        PublishError: it is not whole; or it was swept in a tree with changes that are not committed.
    """
    return _of_a_commit(read(path, Sweep, root), path, root)


def _of_a_commit(record: Published, path: Path, root: Path) -> Published:
    if record.dirty or not record.commit:
        came = "one with uncommitted changes" if record.commit else "none"
        raise PublishError(f"{shown(path, root)}: expected a run of a commit, got {came}: commit, then measure again")
    return record
