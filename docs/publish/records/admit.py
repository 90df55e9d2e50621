"""Publish what a machine measured: `python -m docs.publish.records.admit RECORD.json ...`.

Checks that each record is whole, of committed code that this checkout knows, and possible on its hardware. Then
copies it, as it is, to docs/measurements/runs: under a name of its own where a run of the same second is there.
"""

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from docs.publish.errors import PublishError
from docs.publish.place import MEASUREMENTS
from docs.publish.records.admission import publishable
from docs.publish.records.schema import Record, Sources
from tests.benchmarks import functions
from tests.benchmarks.functions import Code
from tests.benchmarks.reviewed import UNREVIEWED, version
from tests.benchmarks.source import ROOT

RUNS = MEASUREMENTS / "runs"


def admit(path: Path, runs: Path = RUNS, root: Path = ROOT, busy: bool = False) -> Path:
    """Check a record and copy it to the published runs; returns where it is now.

    With `busy`, it may have rows of a busy machine: pages show them only where no other run has them.

    Raises:
        PublishError: it may not be published, in one line that names the file; nothing was written then.
    """
    if not path.is_file():
        raise PublishError(f"{path}: expected a record, found no such file")
    record = publishable(path, root)
    if not record.rows:
        raise PublishError(f"{path}: expected rows, got none")
    if (reasons := [row.busy for row in record.rows if row.busy]) and not busy:
        raise PublishError(
            f"{path}: expected rows of an idle machine, got {len(reasons)} of {len(record.rows)} "
            f"of a busy one ({reasons[0]}): measure again, or add --busy"
        )
    try:
        of_its_commit(record, root)
    except PublishError as error:
        raise PublishError(f"{path}: {error}") from error
    content = path.read_bytes()
    name = json.loads(content)["id"]
    target = runs / f"{name}.json"
    for number in itertools.count(2):
        if not target.exists():
            break
        if target.read_bytes() == content:
            raise PublishError(f"{path}: expected a new record, got one that is in {target} already")
        target = runs / f"{name}-{number}.json"
    runs.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as copy:
        copy.write(content)
    return target


def of_its_commit(record: Record, root: Path = ROOT) -> None:
    """Compare what the record says that it measured with the code of its commit.

    Raises:
        PublishError: the commit is not known here, or what was measured is not what it holds.
    """
    commit = str(record.commit)
    measured: dict[str, Sources] = {row.case: row.sources for row in record.rows}
    try:
        then = as_it_was(Code.at(commit, root))
    except subprocess.CalledProcessError as error:
        expected = "expected a commit that this checkout knows"
        raise PublishError(f"{expected}, got {commit}: fetch it, or push it first") from error
    if version(then) == UNREVIEWED:
        raise PublishError(
            f"expected a commit with a reviewed method, got {commit[:10]}: see tests/benchmarks/reviewed.py"
        )
    for case, sources in measured.items():
        missing = [file for file in sources.files if file not in then.texts]
        if missing:
            raise PublishError(f"{case}: expected {missing[0]} in commit {commit[:10]}, found none")
        if (sources.hash, sources.method) != (then.measured(sources.files[-1]).hash, version(then)):
            raise PublishError(f"{case}: expected the code of commit {commit[:10]}, got a run of other code")


def as_it_was(then: Code) -> Code:
    """The code of a commit, in the canonical form that the commit itself gives it."""
    own = ModuleType(functions.__name__)
    exec(
        then.texts.get(functions.__name__.replace(".", "/") + ".py", "from tests.benchmarks.functions import Code"),
        vars(own),
    )
    return own.Code(then.texts)


def main(arguments: list[str]) -> int:
    """Admit the records that were named; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m docs.publish.records.admit", description="Publish local records.")
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD", help="files of docs/measurements/local")
    parser.add_argument("--busy", action="store_true", help="also records with rows of a busy machine")
    given = parser.parse_args(arguments)
    for path in given.records:
        try:
            print(f"{admit(path.resolve(), busy=given.busy)}: add and commit this file")
        except PublishError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
