"""One measured number: where it stands among all that was measured, what it says, and whether it is stale."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from docs.publish.errors import PublishError, unknown
from docs.publish.records.schema import Record, Row, Timing, describe

PUBLISHED_MACHINE = "nvidia-h200"  # what a page means if it names no machine
MODES = {
    "device": "GPU time, cold cache",
    "calls": "back-to-back calls",
    "graph": "graph replay, cold cache",
    "burst": "a burst after a pause",
    "sustained": "sustained load",
}
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
        "registers per thread", "", lambda row: max((binary.registers for binary in row.binaries), default=None)
    ),
}


@dataclass(frozen=True, eq=False)
class Measured:
    """A row with what it means: its coordinates, its metrics, and whether the code that it measured has changed."""

    row: Row
    stale: bool

    def __repr__(self) -> str:
        return describe(self.row)

    @cached_property
    def coordinates(self) -> Coordinates:
        """All of them, none left open."""
        return Coordinates(self.case, self.variant, self.direction, self.size, self.dtype, self.mode, self.machine)

    @property
    def case(self) -> str:
        return self.row.case

    @property
    def variant(self) -> str:
        return self.row.variant

    @property
    def direction(self) -> str:
        return self.row.direction

    @property
    def size(self) -> str:
        """The shape as macros take it: "32768x4096"."""
        return self.row.size

    @property
    def dtype(self) -> str:
        return self.row.dtype

    @property
    def mode(self) -> str:
        return self.row.mode

    @property
    def machine(self) -> str:
        """The machine's slug."""
        return self.record.machine["slug"]

    @property
    def time(self) -> Timing:
        return self.row.time

    @property
    def record(self) -> Record:
        """The run that measured this row."""
        return self.row.record

    @property
    def anchor(self) -> str:
        """The row's id on the machine's page."""
        parts = (self.case, self.variant, self.direction, self.size, self.dtype, self.mode)
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
