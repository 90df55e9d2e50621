"""The records of all machines, merged: which number is current, which is history, which is stale.

Runs of docs/measurements/runs are published. What this machine measured (docs/measurements/local) stands beside them as
a machine of its own, even where it is of the same model, and never replaces a published number.
"""

import copy
import itertools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from docs.publish import kept, units
from docs.publish.errors import PublishError, unknown
from docs.publish.place import MEASUREMENTS
from docs.publish.records import reruns, staleness
from docs.publish.records.admission import checked, publishable
from docs.publish.records.measured import PUBLISHED_MACHINE, Coordinates, Measured, point
from docs.publish.records.schema import Failure, Record, Row
from tests.benchmarks.source import ROOT

ANYWHERE = Coordinates()


class Store:
    """Records of machines.

    Attributes:
        main: the slug of the machine that a page means if it names none.
        machines: the machines' slugs with their names, the main one first, this machine last.
        here: the slugs of this machine.
        gpus: the slugs of machines that are a GPU.
    """

    def __init__(self, published: Iterable[Record], local: Iterable[Record] = (), root: Path = ROOT):
        known = sorted(published, key=_age)
        taken = {record.machine["slug"] for record in known}
        unpublished = [_as_local(record, taken) for record in sorted(local, key=_age)]
        self.records = [*known, *unpublished]
        self.here = {record.machine["slug"] for record in unpublished}
        self.gpus = {record.machine["slug"] for record in self.records if record.machine["kind"] == "gpu"}
        names = {record.machine["slug"]: record.machine["name"] for record in self.records}
        self._lead(PUBLISHED_MACHINE, names)
        rows = _measured([row for record in self.records for row in record.rows], root)
        self._code = {(row.machine, row.case): row.row.sources.code for row in rows}  # of the newest run of each case
        self._grid = {
            (record.machine["slug"], case): {*grid} for record in self.records for case, grid in record.grid.items()
        }
        self._sizes = {(row.case, _in_a_grid(row, row.row.named)): row.size for row in rows}  # the newest at last
        self._failures: dict[str, list[Failure]] = {}
        self._history = _indexed(rows)
        self._current = _indexed(
            _newest_at_each_point(
                [
                    row
                    for row in rows
                    if self._is_in_the_grid(row)
                    and (root / row.row.sources.files[-1]).exists()  # a case that was removed is history
                ]
            )
        )

    @classmethod
    def load(cls, measurements: Path = MEASUREMENTS, root: Path = ROOT, local: bool = True) -> "Store":
        """The records below a folder with runs/ and, if wanted, local/.

        Raises:
            PublishError: a file is no record, or may not be published; the message names it.
        """
        kept.forget()
        published = [publishable(path, root) for path in sorted((measurements / "runs").glob("*.json"))]
        unpublished = [checked(path, root) for path in sorted((measurements / "local").glob("*.json"))] if local else []
        return cls(published, unpublished, root)

    def of(self, machine: str) -> "Store":
        """The same with another main machine; itself for none."""
        if machine in ("", self.main):
            return self
        found = copy.copy(self)
        found._lead(self._known(machine), self.machines)
        return found

    def _lead(self, main: str, names: Mapping[str, str]) -> None:
        self.main = main
        self.machines = dict(sorted(names.items(), key=lambda item: (item[0] != main, item[0] in self.here)))

    def _is_in_the_grid(self, row: Measured) -> bool:
        """Whether the case times this still, as its newest run says; or, of runs that do not, is of the same code.

        So while a campaign goes on, in parts, what it has not reached yet is shown as it was: stale.
        """
        grid = self._grid.get((row.machine, row.case))
        if grid is None:
            return self._code[row.machine, row.case] == row.row.sources.code
        older = _in_a_grid(row, row.row.named)  # numbers for what ran: one name may have meant several things
        return _in_a_grid(row, row.size) in grid or (older in grid and self._sizes[row.case, older] == row.size)

    def select(self, at: Coordinates = ANYWHERE, history: bool = False) -> list[Measured]:
        """The rows that fit, oldest first; of the newest run at each point on each machine, or of all runs."""
        rows = [*(self._history if history else self._current).get((at.machine, at.case), [])]
        for name, value in at.fixed().items():
            if name not in ("machine", "case"):
                rows = _with(rows, name, value)
        return rows

    def find(self, at: Coordinates) -> Measured:
        """The current row that is meant. What is left open has one choice only, or is the forward direction.

        Raises:
            PublishError: there is no such row, or more than one.
        """
        return self.choose(at, "variant", "direction", "shape", "dtype", "mode")[0]

    def choose(self, at: Coordinates, *names: str) -> list[Measured]:
        """The current rows of a case of which each of these coordinates is settled, in this order.

        Raises:
            PublishError: a coordinate fits nothing, or is left open and has several choices.
        """
        rows = self.rows_of(at)
        for name in names:
            rows = self.settle(rows, name, getattr(at, name))
        return rows

    def rows_of(self, at: Coordinates) -> list[Measured]:
        """The current rows of a case on a machine (the main one where it is left open).

        Raises:
            PublishError: the machine or the case is not known.
        """
        machine = self._known(at.machine)
        if rows := self.select(Coordinates(at.case, machine=machine)):
            return rows
        known = {row.case for row in self.select(Coordinates(machine=machine))}
        raise unknown(f"case on {machine}", at.case, sorted(known))

    def nearest(self, at: Coordinates) -> list[Measured]:
        """The rows that another machine than the main one has for the same question, if it has any.

        Where it lacks the shape, the dtype or the mode, its own choice is taken: a CPU has other shapes and modes.
        """
        rows = self.select(Coordinates(at.case, direction=at.direction, machine=at.machine))
        for name in ("shape", "dtype", "mode"):
            wanted, choices = getattr(at, name), _choices(rows, name)
            if wanted is None or not choices:
                continue
            fallback = (
                max(_alike(choices, wanted), key=lambda size: math.prod(units.numbers(size)))
                if name == "shape"
                else choices[0]
            )
            rows = _with(rows, name, wanted if wanted in choices else fallback)
        return rows

    def settle(self, rows: list[Measured], name: str, wanted: str | None) -> list[Measured]:
        """The rows (at least one is given) with one value of a coordinate: the wanted one, or the only one.

        Raises:
            PublishError: no row has the wanted value, or none is wanted and there are several.
        """
        choices = _choices(rows, name)
        if wanted is None and name == "direction" and "forward" in choices:
            wanted = "forward"
        if wanted is None and len(choices) > 1:
            raise PublishError(
                f"{name} of {rows[0].case}: expected one of {', '.join(choices)}, got none; say {name}=..."
            )
        if wanted is not None and wanted not in choices:
            error = unknown(f"{name} of {rows[0].case}", wanted, choices)
            raise PublishError(f"{error}{self._why_not(rows[0], name, wanted)}")
        return rows if wanted is None else _with(rows, name, wanted)

    def _why_not(self, row: Measured, name: str, wanted: str) -> str:
        """Why a variant that was asked for has no time, where its run says so."""
        if name != "variant":
            return ""
        reasons = [f for f in self.failures(row.machine) if f.case == row.case and f.variant == wanted]
        return f"; it was not timed: {reasons[0].explanation}" if reasons else ""

    def _known(self, machine: str | None) -> str:
        """A machine's slug; that of the main machine for None."""
        slug = machine or self.main
        if slug not in self.machines:
            raise unknown("machine", slug, self.machines)
        return slug

    def newest_record(self, at: Coordinates) -> Record:
        """The newest run of a machine, or its newest run of a case, or the one that measured a shape of it.

        Raises:
            PublishError: the machine, the case or the shape is not known.
        """
        if at.case is not None:
            rows = self.rows_of(at) if at.shape is None else self.choose(at, "shape")
            return max((row.record for row in rows), key=_age)
        machine = self._known(at.machine)
        return [record for record in self.records if record.machine["slug"] == machine][-1]

    def busy(self, machine: str) -> list[Measured]:
        """What was measured on a machine while it was busy, of the code that its cases have measured last."""
        rows = self.select(Coordinates(machine=machine), history=True)
        return [row for row in rows if row.busy and self._code[machine, row.case] == row.row.sources.code]

    def _is_last(self, record: Record, case: str) -> bool:
        """Whether a run measured the code that the newest run of a case on its machine did, as far as it says."""
        last = self._code.get((record.machine["slug"], case))
        return all(row.sources.code == last for row in record.rows if row.case == case)

    def failures(self, machine: str) -> list[Failure]:
        """What could not be timed on a machine, each once: in the runs of the current rows, else in the newest run."""
        if machine not in self._failures:
            self._failures[machine] = self._failed(machine)
        return self._failures[machine]

    def _failed(self, machine: str) -> list[Failure]:
        runs: dict[tuple, set[str]] = {}
        for row in self.select(Coordinates(machine=machine)):
            runs.setdefault(row.row.place, set()).add(row.record.id)
        found = [
            (record.id, failure)
            for record in self.records
            if record.machine["slug"] == machine
            for failure in record.failures
            if self._is_last(record, failure.case)
        ]
        newest = {failure.place: {run} for run, failure in found}
        current = [failure for run, failure in found if run in runs.get(failure.place, newest[failure.place])]
        return list({failure.model_dump_json(): failure for failure in current}.values())


def _in_a_grid(row: Measured, size: str) -> str:
    return f"{row.direction} {size} {row.dtype} {row.mode}"


def _measured(rows: list[Row], root: Path) -> list[Measured]:
    """Rows, oldest first, each with those that measured the same on separately started machines."""
    again = reruns.of(rows)
    return [Measured(row, staleness.changed(row.sources, root), again(row)) for row in rows]


def _newest_at_each_point(rows: list[Measured]) -> list[Measured]:
    """Of each point the rows of its newest run; of a run on a busy machine only where there is no other.

    A run of some variants only stands back for one of all, of the same code: it shows whether that can be reproduced.
    """
    known: dict[tuple, dict[str, list[Measured]]] = {}  # of each point its runs
    for row in rows:
        known.setdefault((row.machine, *point(row.row)), {}).setdefault(row.record.id, []).append(row)
    current = {row for runs in known.values() for row in _chosen(list(runs.values()))}
    return [row for row in rows if row in current]


def _chosen(runs: list[list[Measured]]) -> list[Measured]:
    """Of a point's runs, oldest first, the rows of the one that is current."""
    quiet = [rows for rows in runs if not any(row.busy for row in rows)] or runs
    newest = [rows for rows in quiet if rows[0].row.sources.code == quiet[-1][0].row.sources.code]
    chosen = ([rows for rows in newest if not rows[0].record.variants] or newest)[-1]
    absent = chosen[0].record.lacks  # a peer that is not installed here does not take away what another run says of it
    return [*chosen, *{row.variant: row for rows in quiet for row in rows if row.variant in absent}.values()]


def _indexed(rows: Iterable[Measured]) -> dict[tuple[str | None, str | None], list[Measured]]:
    """Rows by (machine, case), with None for any, in their order."""
    index: dict[tuple[str | None, str | None], list[Measured]] = {}
    for row in rows:
        for machine, case in itertools.product((row.machine, None), (row.case, None)):
            index.setdefault((machine, case), []).append(row)
    return index


def _choices(rows: list[Measured], name: str) -> list[str]:
    """The values of a coordinate, each once, in the rows' order."""
    return list(dict.fromkeys(getattr(row.coordinates, name) for row in rows))


def _with(rows: list[Measured], name: str, value: str) -> list[Measured]:
    return [row for row in rows if getattr(row.coordinates, name) == value]


def _alike(sizes: list[str], wanted: str) -> list[str]:
    """The sizes at which the same part runs; all where it runs at none."""
    part = wanted.rpartition(" ")[0]
    return [size for size in sizes if size.rpartition(" ")[0] == part] or sizes


def _age(record: Record) -> tuple[str, str]:
    return record.date, record.id


def _as_local(record: Record, taken: set[str]) -> Record:
    """A record of this machine, told apart from published ones of the same model."""
    slug = record.machine["slug"]
    machine = record.machine | {
        "slug": f"{slug}-here" if slug in taken else slug,
        "name": f"{record.machine['name']} (this machine)",
    }
    return record.changed(machine=machine)
