"""One measured number: where it stands among all that was measured, what it says, and whether it is stale."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property

from docs.publish import units
from docs.publish.errors import PublishError, unknown
from docs.publish.records.schema import Record, Row, Timing, describe

PUBLISHED_MACHINE = "nvidia-h100-80gb-hbm3"  # what a page means if it names no machine
MODES = {
    "device": "GPU time, cold cache",
    "calls": "back-to-back calls",
    "graph": "CUDA graph of many calls, warm cache",
    "burst": "ten or more calls after a pause",
    "sustained": "sustained load",
}
RUNS = 3  # on separately started machines: from so many on, a host-bound number is a range over them
HOST_SHARE = 0.8  # a wall clock is the host's unless the GPU works for at least so much of it
DIRECTIONS = {"forward": "forward", "backward": "backward", "both": "forward and backward"}


@dataclass(frozen=True)
class Coordinates:
    """Where a number stands among all that was measured. None leaves a coordinate open.

    Attributes:
        shape: as macros take it, "32768x4096".
        machine: its slug.
    """

    case: str | None = None
    variant: str | None = None
    direction: str | None = None
    shape: str | None = None
    dtype: str | None = None
    mode: str | None = None
    machine: str | None = None

    def fixed(self) -> dict[str, str]:
        """The coordinates that are not open, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


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

    @property
    def lower_is_better(self) -> bool:
        """Of times, and of what is counted; what is inverse to the time should be high."""
        return self.power >= 0


@dataclass(frozen=True)
class Published:
    """What is shown of a metric.

    Of most numbers it is the row's own value, from its 20th to its 80th percentile. A host-bound number depends on the
    host as much as on the code. So it is the range over at least `RUNS` runs on separately started machines, with their
    median. A speedup is a range from two machines on: what holds on one need not hold on the other.

    Attributes:
        value, low, high: in base units.
        runs: what each run of a range said, oldest first; empty where it is no range.
    """

    value: float
    low: float
    high: float
    unit: str
    runs: tuple[tuple[Row, float], ...] = ()

    @property
    def text(self) -> str:
        return units.between(self.low, self.high, self.unit) if self.runs else units.text(self.value, self.unit)


def of_the_bandwidth_ceiling(row: Row) -> float:
    """How near its rate is to the ceiling of memory, wherever the bytes came from; 0 where none are counted."""
    return row.moved / row.time.p50 / row.record.ceilings["bandwidth"][row.mix]["rate"] if row.moved else 0.0


def _share(row: Row) -> float | None:
    return of_the_bandwidth_ceiling(row) if row.moved and row.from_memory else None


def matrix_ceiling(row: Row) -> float | None:
    """FLOP/s of the matrix ceiling that applies, from the same run; None where it was not measured."""
    regimes = row.record.ceilings["matrix"].get(row.dtype, {})
    return regimes[row.regime]["rate"] if row.regime in regimes else None


def _rate_share(row: Row) -> float | None:
    ceiling = matrix_ceiling(row)
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
    "build": Metric("time to build", "s", lambda row: row.build_seconds if row.built_cold else None),
    "first": Metric("first call, with caches as they were", "s", lambda row: row.build_seconds),
    "error": Metric("error against float64", "", lambda row: row.error.value),
    "registers": Metric(
        "registers per thread", "", lambda row: max((binary.registers for binary in row.binaries), default=None)
    ),
}


@dataclass(frozen=True, eq=False)
class Measured:
    """A row with what it means: its coordinates, its metrics, and what has changed since.

    Attributes:
        stale: what has changed since (staleness.py); nothing where it is as it was.
        again: this row and those of the same code and software on separately started machines, one each, oldest first.
    """

    row: Row
    stale: str
    again: tuple[Row, ...] = ()
    case: str = field(init=False)  # these the row says
    variant: str = field(init=False)
    direction: str = field(init=False)
    size: str = field(init=False)
    dtype: str = field(init=False)
    mode: str = field(init=False)
    time: Timing = field(init=False)
    record: Record = field(init=False)
    busy: str = field(init=False)

    def __post_init__(self) -> None:
        vars(self).update({each.name: getattr(self.row, each.name) for each in fields(self) if not each.init})

    def __repr__(self) -> str:
        return describe(self.row)

    @cached_property
    def coordinates(self) -> Coordinates:
        """All of them, none left open."""
        return Coordinates(self.case, self.variant, self.direction, self.size, self.dtype, self.mode, self.machine)

    @property
    def machine(self) -> str:
        """The machine's slug."""
        return self.record.machine["slug"]

    @property
    def anchor(self) -> str:
        """The row's id on the machine's page."""
        parts = (self.case, self.variant, self.direction, self.size, self.dtype, self.mode)
        return "-".join(parts).replace("/", "-").replace(" ", "-")

    @cached_property
    def host_bound(self) -> bool:
        """Whether the host set the pace at this point: for one variant there at least, the GPU had time to wait."""
        if self.mode != "calls" or self.record.machine["kind"] != "gpu":
            return False
        runs = {row.record.id: row.record for row in (*self.again, self.row)}  # a run in parts may lack GPU times
        beside = [row for run in runs.values() for row in run.by_place.get(self.row.place, ())]
        gpu = {row.variant: row.time.p50 for row in beside if row.mode == "device"}
        walls = {variant: row.time.p50 for variant, row in _beside(self.row).items()}
        return any(gpu.get(variant, 0) < HOST_SHARE * seconds for variant, seconds in walls.items())

    def metric(self, name: str, over: str | None = None) -> float | None:
        """A metric of this run in base units; None where the row has no such thing (memory on a CPU).

        Raises:
            PublishError: the metric is unknown; a speedup lacks `over`, or that variant is not in the same run.
        """
        if name not in METRICS:
            raise unknown("metric", name, METRICS)
        if (name == "speedup") != (over is not None):
            expected = "over=<variant> with the metric 'speedup'" if over is None else "over=... only with 'speedup'"
            raise PublishError(f"metric {name!r}: expected {expected}")
        return METRICS[name].value(self.row) if over is None else _speedup(self.row, over)

    def published(self, name: str, over: str | None = None) -> Published | None:
        """What is shown of a metric; None where the row has no such thing.

        Raises:
            PublishError: see metric.
        """
        value, known = self.metric(name, over), METRICS[name]
        if value is None:
            return None
        if self.host_bound and known.power and (runs := self._over_runs(name, over)):
            values = [found for _, found in runs]
            return Published(statistics.median(values), min(values), max(values), known.unit, runs)
        low, high = self.spread(name, over) or (value, value)
        return Published(value, low, high, METRICS[name].unit)

    def _over_runs(self, name: str, over: str | None) -> tuple[tuple[Row, float], ...]:
        """What each of the runs says, if they are enough for a range; two of them are for a speedup."""
        rows = [row for row in self.again if over is None or over in _beside(row)]
        values = [(row, METRICS[name].value(row) if over is None else _speedup(row, over)) for row in rows]
        runs = tuple((row, value) for row, value in values if value is not None)
        return runs if len(runs) >= (RUNS if over is None else 2) else ()

    def spread(self, name: str, over: str | None = None) -> tuple[float, float] | None:
        """The metric at the 20th and 80th percentile of the time, smaller first; None where time has no part in it."""
        value, power, time = self.metric(name, over), METRICS[name].power, self.row.time
        if value is None or not power:
            return None
        low, high = sorted(value * (end / time.p50) ** power for end in (time.p20, time.p80))
        return low, high


def point(row: Row) -> tuple[str, str, str, str, str]:
    """Where variants are measured side by side; the mode comes last."""
    return *row.place, row.mode


def _beside(row: Row) -> dict[str, Row]:
    """The rows of all variants that were measured side by side with one."""
    return {other.variant: other for other in row.record.by_place[row.place] if other.mode == row.mode}


def _speedup(row: Row, over: str) -> float:
    """Raises: PublishError: the variant `over` is not in the same run."""
    beside = _beside(row)
    if over not in beside:
        raise unknown(f"over, beside {describe(row)}", over, beside)
    return beside[over].time.p50 / row.time.p50
