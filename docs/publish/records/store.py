"""The records of all machines, merged: which number is current, which is history, which is stale.

Runs of docs/measurements/runs are published. What this machine measured (docs/measurements/local) stands beside them as
a machine of its own, even where it is of the same model, and never replaces a published number.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.publish.errors import PublishError, unknown
from docs.publish.place import MEASUREMENTS
from docs.publish.records import datasheets, staleness
from docs.publish.records.schema import Failure, Record, Row, describe, read
from tests.benchmarks.source import ROOT

PUBLISHED_MACHINE = "nvidia-h200"  # what a page means if it names no machine


@dataclass(frozen=True)
class Metric:
    """A quantity of a row: its name, its unit (see units.py), its value, and how it follows the time.

    Attributes:
        power: -1 where it is inverse to the time, 1 where it grows with it, 0 where the time has no part in it.
    """

    label: str
    unit: str
    value: Callable[[Row], float | None]
    power: int = 0


def _share(row: Row) -> float | None:
    return row.moved / row.time.p50 / row.record.ceilings["bandwidth"][row.mix]["rate"] if row.moved else None


def _matrix_ceiling(row: Row) -> float | None:
    regimes = row.record.ceilings["matrix"].get(row.dtype, {})
    return regimes[row.regime]["rate"] if row.regime in regimes else None


def _rate_share(row: Row) -> float | None:
    ceiling = _matrix_ceiling(row)
    return row.flops / row.time.p50 / ceiling if ceiling and row.flops else None


METRICS = {
    "time": Metric("time", "s", lambda row: row.time.p50, 1),
    "bandwidth": Metric("bandwidth", "B/s", lambda row: row.moved / row.time.p50 if row.moved else None, -1),
    "share": Metric("share of the measured bandwidth ceiling", "%", _share, -1),
    "rate": Metric("rate", "FLOP/s", lambda row: row.flops / row.time.p50 if row.flops else None, -1),
    "rate_share": Metric("share of the measured matrix ceiling", "%", _rate_share, -1),
    "speedup": Metric("speedup", "x", lambda row: None, -1),
    "memory": Metric("peak memory", "B", lambda row: row.peak_memory_bytes),
    "kernels": Metric("kernels", "", lambda row: row.kernels),
    "build": Metric("time to build", "s", lambda row: row.build_seconds),
    "error": Metric("error against float64", "", lambda row: row.error.value),
    "registers": Metric(
        "registers per thread", "", lambda row: max((one.registers for one in row.binaries), default=None)
    ),
}


MODES = {
    "device": "GPU time, cold cache",
    "calls": "back-to-back calls",
    "graph": "graph replay, cold cache",
    "burst": "a burst after a pause",
    "sustained": "sustained load",
}
DIRECTIONS = {"forward": "forward", "backward": "backward", "both": "forward and backward"}


class Measured:
    """A row with what it means: its metrics, and whether it is stale. Its fields are those of schema.Row."""

    def __init__(self, row: Row, stale: bool):
        self.row = row
        self.stale = stale

    def __getattr__(self, name: str) -> Any:
        return getattr(self.row, name)

    def __repr__(self) -> str:
        return describe(self.row)

    @property
    def machine(self) -> str:
        """The machine's slug."""
        return self.row.record.machine["slug"]

    @property
    def anchor(self) -> str:
        """Its id on the machine's page."""
        row = self.row
        parts = (row.case, row.variant, row.direction, row.size, row.dtype, row.mode)
        return "-".join(parts).replace("/", "-")

    @property
    def matrix_ceiling(self) -> float | None:
        """FLOP/s of the matrix ceiling that applies, from the same run; None where it was not measured."""
        return _matrix_ceiling(self.row)

    def metric(self, name: str, over: str | None = None) -> float | None:
        """A metric in base units; None where the row has no such thing (memory on a CPU).

        Raises:
            PublishError: the metric is unknown; a speedup lacks `over`, or that variant is not in the same run.
        """
        if name not in METRICS:
            raise unknown("metric", name, METRICS)
        if (name == "speedup") != (over is not None):
            expected = "over=<variant> with the metric 'speedup'" if over is None else "over=... only with 'speedup'"
            raise PublishError(f"metric {name!r}: expected {expected}")
        if over is not None:
            return self.beside(over).time.p50 / self.row.time.p50
        return METRICS[name].value(self.row)

    def beside(self, variant: str) -> Row:
        """The row of another variant, measured side by side with this one.

        Raises:
            PublishError: there is none in the same run.
        """
        point = _point(self.row)
        rows = [row for row in self.row.record.rows if _point(row) == point]
        for row in rows:
            if row.variant == variant:
                return row
        raise unknown(f"over, beside {describe(self.row)}", variant, (row.variant for row in rows))

    def spread(self, name: str, over: str | None = None) -> tuple[float, float] | None:
        """The metric at the 20th and 80th percentile of the time, smaller first; None where time has no part in it."""
        value, power, time = self.metric(name, over), METRICS[name].power, self.row.time
        if value is None or not power:
            return None
        low, high = sorted(value * (end / time.p50) ** power for end in (time.p20, time.p80))
        return low, high


def _point(row: Row) -> tuple:
    return row.case, row.direction, row.size, row.dtype, row.mode


class Store:
    """Records of machines.

    Attributes:
        machines: the machines' slugs with their names, the published default first, this machine last.
    """

    def __init__(self, published: Iterable[Record], local: Iterable[Record] = (), root: Path = ROOT):
        known = sorted(published, key=_age)
        taken = {record.machine["slug"] for record in known}
        here = [_as_local(record, taken) for record in sorted(local, key=_age)]
        self.records = [*known, *here]
        self.local = {record.machine["slug"] for record in here}
        names = {record.machine["slug"]: record.machine["name"] for record in self.records}
        self.machines = dict(
            sorted(names.items(), key=lambda item: (item[0] != PUBLISHED_MACHINE, item[0] in self.local))
        )
        self._rows = [
            Measured(row, staleness.row_is_stale(row.sources, root)) for record in self.records for row in record.rows
        ]
        self._newest = {(row.machine, row.case): row.record.id for row in self._rows}
        self._current = [
            row
            for row in self._rows
            if self._newest[row.machine, row.case] == row.record.id
            and (root / row.sources.files[-1]).exists()  # a case that was removed is history
        ]

    @classmethod
    def load(cls, measurements: Path = MEASUREMENTS, root: Path = ROOT, local: bool = True) -> "Store":
        """The records below a folder with runs/ and, if wanted, local/.

        Raises:
            PublishError: a file is no record, or may not be published; the message names it.
        """
        staleness.forget()
        published = [publishable(path, root) for path in sorted((measurements / "runs").glob("*.json"))]
        here = [checked(path, root) for path in sorted((measurements / "local").glob("*.json"))] if local else []
        return cls(published, here, root)

    def select(
        self,
        case: str | None = None,
        variant: str | None = None,
        direction: str | None = None,
        shape: str | None = None,
        dtype: str | None = None,
        mode: str | None = None,
        machine: str | None = None,
        history: bool = False,
    ) -> list[Measured]:
        """The rows that fit, oldest first; of the newest run of each case on each machine, or of all runs."""
        wanted = {
            "case": case, "machine": machine, "variant": variant, "direction": direction, "size": shape,
            "dtype": dtype, "mode": mode,
        }  # fmt: skip
        given = {name: value for name, value in wanted.items() if value is not None}
        rows = self._rows if history else self._current
        return [row for row in rows if all(getattr(row, name) == value for name, value in given.items())]

    def find(
        self,
        case: str,
        variant: str,
        direction: str | None = None,
        shape: str | None = None,
        dtype: str | None = None,
        mode: str | None = None,
        machine: str = PUBLISHED_MACHINE,
    ) -> Measured:
        """The one current row that is meant. What is left out has one choice only, or is the forward direction.

        Raises:
            PublishError: there is no such row, or more than one.
        """
        asked = {"variant": variant, "direction": direction, "shape": shape, "dtype": dtype, "mode": mode}
        return self.choose(case, machine, **asked)[0]

    def choose(self, case: str, machine: str, **choices: str | None) -> list[Measured]:
        """The current rows of a case for which each of the given choices (None: left out) is settled.

        Raises:
            PublishError: a choice fits nothing, or is left out and open.
        """
        rows = self.rows_of(case, machine)
        for name, wanted in choices.items():
            rows = self.settle(rows, name, wanted)
        return rows

    def rows_of(self, case: str, machine: str = PUBLISHED_MACHINE) -> list[Measured]:
        """The current rows of a case on a machine.

        Raises:
            PublishError: the machine or the case is not known.
        """
        if machine not in self.machines:
            raise unknown("machine", machine, self.machines)
        rows = self.select(case=case, machine=machine)
        if not rows:
            raise unknown(f"case on {machine}", case, sorted({row.case for row in self.select(machine=machine)}))
        return rows

    def nearest(self, case: str, machine: str, direction: str | None = None, **wanted: str | None) -> list[Measured]:
        """The rows that another machine than the published one has for the same question, if it has any.

        Where it lacks what is wanted (shape, dtype, mode) its own choice is taken: a CPU has other shapes and modes.
        """
        rows = self.select(case=case, machine=machine, direction=direction)
        for name, value in wanted.items():
            its = list(dict.fromkeys(_choice(row, name) for row in rows))
            if value is None or not its:
                continue
            own = max(its, key=_elements) if name == "shape" else its[0]
            rows = [row for row in rows if _choice(row, name) == (value if value in its else own)]
        return rows

    def settle(self, rows: list[Measured], name: str, wanted: str | None) -> list[Measured]:
        """The rows (at least one is given) with one value of a choice: the wanted one, or the only one.

        Raises:
            PublishError: no row has the wanted value, or none is wanted and there are several.
        """
        found = list(dict.fromkeys(_choice(row, name) for row in rows))
        if wanted is None and name == "direction" and "forward" in found:
            wanted = "forward"
        if wanted is None and len(found) > 1:
            raise PublishError(
                f"{name} of {rows[0].case}: expected one of {', '.join(found)}, got none; say {name}=..."
            )
        if wanted is not None and wanted not in found:
            error = unknown(f"{name} of {rows[0].case}", wanted, found)
            raise PublishError(f"{error}{self._why_not(rows[0], name, wanted)}")
        return rows if wanted is None else [row for row in rows if _choice(row, name) == wanted]

    def _why_not(self, row: Measured, name: str, wanted: str) -> str:
        """Why a variant that was asked for has no time, where its run says so."""
        if name != "variant":
            return ""
        reasons = [f for f in self.failures(row.machine) if f.case == row.case and f.variant == wanted]
        return f"; it was not timed: {reasons[0].said}" if reasons else ""

    def newest_record(self, machine: str, case: str | None = None) -> Record:
        """The newest run of a machine, or its newest run of a case.

        Raises:
            PublishError: the machine or the case is not known.
        """
        if case is not None:
            return self.rows_of(case, machine)[0].record
        if machine not in self.machines:
            raise unknown("machine", machine, self.machines)
        return [record for record in self.records if record.machine["slug"] == machine][-1]

    def failures(self, machine: str) -> list[Failure]:
        """What the newest runs of each case on a machine could not time."""
        return [
            failure
            for record in self.records
            if record.machine["slug"] == machine
            for failure in record.failures
            if self._newest.get((machine, failure.case), record.id) == record.id
        ]


def _choice(row: Measured, name: str) -> str:
    return row.size if name == "shape" else getattr(row, name)


def _elements(size: str) -> int:
    return math.prod(map(int, size.split("x")))


def _age(record: Record) -> tuple[str, str]:
    return record.date, record.id


def _as_local(record: Record, taken: set[str]) -> Record:
    """A record of this machine, told apart from published ones of the same model."""
    slug = record.machine["slug"]
    machine = record.machine | {
        "slug": f"{slug}-here" if slug in taken else slug,
        "name": f"{record.machine['name']} (this machine)",
    }
    copy = record.model_copy(update={"machine": machine})
    for row in copy.rows:
        row.belongs_to(copy)
    return copy


def checked(path: Path, root: Path = ROOT) -> Record:
    """A run record that is whole and claims nothing impossible, known by its file's name from here on.

    The first runs that began in one second, on several GPUs of a machine, wrote one id.

    Raises:
        PublishError: see schema.read and datasheets.check; the message names the file.
    """
    record = read(path, Record, root).named(path.stem)
    try:
        datasheets.check(record)
    except PublishError as error:
        raise PublishError(f"{_shown(path, root)}: {error}") from error
    return record


def publishable(path: Path, root: Path = ROOT) -> Record:
    """A run record that may be published: of committed code, too.

    Raises:
        PublishError: see `checked`; or it was measured in a tree with changes that are not committed.
    """
    record = checked(path, root)
    if record.dirty or not record.commit:
        came = "one with uncommitted changes" if record.commit else "none"
        raise PublishError(f"{_shown(path, root)}: expected a run of a commit, got {came}: commit, then measure again")
    return record


def _shown(path: Path, root: Path) -> Path:
    return path.relative_to(root) if path.is_relative_to(root) else path
