"""What a record must look like: the run record that tests/benchmarks/runner.py writes, captures and test reports.

Reading never changes a file. What is wrong with one is said in a line that names it.
"""

import json
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
    with_config,
)
from typing_extensions import TypedDict

from docs.publish import units
from docs.publish.errors import PublishError
from docs.publish.records import earlier, parts
from tests.benchmarks.runner import lacking, size

SCHEMA = 1
STRICT = ConfigDict(strict=True, extra="forbid", frozen=True)

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]
Date = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
Shape = Annotated[dict[str, Annotated[int, Field(ge=0)]], Field(min_length=1)]
Versions = dict[str, str]


class Model(BaseModel):
    """Strict, closed, frozen."""

    model_config = STRICT


class Timing(Model):
    """Seconds per call; `calls` is how many a sample held, where the timer's own record says so (ceilings, sweeps)."""

    p20: Positive
    p50: Positive
    p80: Positive
    samples: Annotated[int, Field(ge=1)]
    calls: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def ordered(self) -> "Timing":
        if not self.p20 <= self.p50 <= self.p80:
            raise ValueError(f"p20 <= p50 <= p80 expected, got {self.p20}, {self.p50}, {self.p80}")
        return self


@with_config(STRICT)
class Ceiling(TypedDict):
    """The best rate reached (bytes/s or FLOP/s), and by what."""

    rate: Positive
    by: Text
    time: Timing


@with_config(STRICT)
class Ceilings(TypedDict):
    """Bandwidth by traffic mix; matrix rate by dtype and regime."""

    bandwidth: dict[str, Ceiling]
    matrix: dict[str, dict[str, Ceiling]]


@with_config(STRICT)
class Yardstick(TypedDict):
    """Seconds that this host needs for next to nothing: an empty Python call, an eager launch of a trivial op, the
    launch of a CUDA kernel alone."""

    python_call: Positive
    eager_launch: Positive
    cuda_launch: NotRequired[Positive | None]


@with_config(STRICT)
class Machine(TypedDict):
    """The hardware, and on a GPU its clocks, temperature and power before and after the run.

    Machines that were started separately have different boots. Older records name neither boot nor processor (of the
    host: its model and cores).
    """

    slug: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    name: Text
    kind: Text
    memory_bytes: Bytes
    units: int
    l2_bytes: int | None
    driver: str | None
    power_limit_w: float | None
    before: dict[str, float | None]
    after: dict[str, float | None]
    processor: NotRequired[Text | None]
    boot: NotRequired[Text | None]


class Binary(Model):
    """A compiled kernel of ours."""

    name: Text
    hash: Text
    registers: int
    spills: int
    shared_bytes: int
    warps: int


class Sources(Model):
    """What was measured: the files that hold it (the case last), a hash of what it can reach, the method's version.

    Captures have no method, and older rows none either: there the hash is over whole files.
    """

    hash: Text
    files: Annotated[list[Text], Field(min_length=1)]
    method: Annotated[int, Field(ge=0)] | None = None

    @property
    def code(self) -> str:
        """The hash of what a row or a sweep can reach, also of older ones."""
        return earlier.code(self.hash)

    @property
    def version(self) -> int:
        """The version of the method that a row or a sweep was measured by, also of older ones."""
        return earlier.version(self.hash) if self.method is None else self.method


class Agreement(Model):
    """The largest difference from float64, and what it may be."""

    value: Annotated[float, Field(ge=0)]
    bound: Annotated[float, Field(ge=0)]


Place = tuple[str, str, str, str]  # of a case's grid


class Point(Model):
    """One variant of a case at one place of its grid.

    Attributes:
        part: what ran, in words, where the case measures several things. Older rows have a number for it in their shape
            and are read in words (parts.py).
    """

    case: Text
    direction: Text
    part: str
    shape: Shape
    dtype: Text
    variant: Text

    @model_validator(mode="wrap")
    @classmethod
    def in_words(cls, content: Any, handler: ModelWrapValidatorHandler["Point"]) -> "Point":
        """Read an older row in words, and remember what it called its point."""
        older = isinstance(content, dict) and "part" not in content and "case" in content and "shape" in content
        point = handler(parts.in_words(content["case"], content) if older else content)
        if older:
            point.__dict__["named"] = size("", content["shape"])
        return point

    @cached_property
    def named(self) -> str:
        """The size as the grid of the row's own run has it."""
        return self.size

    @cached_property
    def size(self) -> str:
        """What ran and the shape, as macros take it: "32768x4096", or "gelu 32768x4096"."""
        return size(self.part, self.shape)

    @cached_property
    def place(self) -> Place:
        """Where in the case's grid it is."""
        return self.case, self.direction, self.size, self.dtype


class Row(Point):
    """What one variant took at one point in one mode.

    Attributes:
        busy: why the machine was too busy to time anything then; empty where it was not. Older rows do not say.
        host: of older records, the yardstick beside times that the host's clock took.
        calls: calls in one sample.
        refreshed: inputs that a call overwrites were put back before each.
        built_cold: the build's seconds began with empty caches.
    """

    mode: Text
    time: Timing
    bytes_read: Bytes
    bytes_written: Bytes
    flops: Annotated[int, Field(ge=0)]
    mix: Text
    peak_memory_bytes: int | None
    kernels: int | None
    error: Agreement
    build_seconds: Annotated[float, Field(ge=0)]
    binaries: list[Binary]
    sources: Sources
    busy: str = ""
    host: Yardstick | None = None
    calls: Annotated[int, Field(ge=1)] | None = None
    refreshed: bool = False
    built_cold: bool | None = None

    @cached_property
    def record(self) -> "Record":
        """The run that measured this row, which says so. (A private attribute of pydantic takes ten times as long.)"""
        raise AttributeError("a row of no run")

    @property
    def regime(self) -> str:
        """Which matrix ceiling applies: sustained load has its own; a CPU has "calls" only."""
        if self.record.machine["kind"] == "cpu":
            return "calls"
        return "sustained" if self.mode == "sustained" else "burst"

    @property
    def moved(self) -> int:
        """The fewest bytes that it must read and write."""
        return self.bytes_read + self.bytes_written

    @property
    def from_memory(self) -> bool:
        """Whether its bytes come from memory: a "device" time begins with a cold cache, and repeated calls find in
        the cache what fits there.
        """
        return self.mode == "device" or self.moved > (self.record.machine["l2_bytes"] or 0)


class Failure(Point):
    """A variant that was not timed at a point, and why. The variant is "*" where none was."""

    reason: Text

    @property
    def explanation(self) -> str:
        """The reason without a terminal's colours, which older records hold."""
        return " ".join(re.sub(r"\x1b?\[\d+m", "", self.reason).split())


class Provenance(Model):
    """What ran when, at which commit, with which software."""

    schema_: Annotated[int, Field(alias="schema")]
    date: Date
    command: Text
    commit: str | None
    software: Versions


class Record(Provenance):
    """One run of the benchmarks on one machine."""

    id: Text
    dirty: bool
    machine: Machine
    ceilings: Ceilings
    variants: list[str] = []  # beside the baseline, those that were asked for; none named: all
    grid: dict[str, list[str]] = {}  # by case, what it times: "forward 32768x4096 bfloat16 device"
    functions: dict[str, dict[str, str]] = {}  # by case, what its rows can reach, each with the hash of its syntax tree
    seconds: dict[str, float] = {}  # what each point took, for planning the next run
    alone: dict[str, float] = {}  # those of them in which it had the machine for itself
    crew: int = 0  # processes that built side by side: their builds took longer than they would have alone
    absent: dict[str, str] = {}  # variants whose package was not installed: what older runs say of them stays
    floor: Timing | None = None  # what the timer reads of an empty kernel
    host: Yardstick | None = None  # older records have it in their rows
    rows: list[Row]
    failures: list[Failure]

    def model_post_init(self, context: Any) -> None:
        for row in self.rows:
            row.__dict__["record"] = self

    @cached_property
    def by_place(self) -> dict[Place, list[Row]]:
        """The rows of each place of a case's grid, in every mode and variant."""
        found: dict[Place, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.place, []).append(row)
        return found

    @cached_property
    def lacks(self) -> dict[str, str]:
        """As `absent`, with what an older record holds as the compiler's failure; a failed import it shows as one."""
        compiler = [at for at in self.failures if not at.reason.startswith("ModuleNotFoundError")]
        return self.absent | {at.variant: package for at in compiler if (package := lacking(at.reason))}

    def changed(self, **update: Any) -> "Record":
        """The same record with another id or machine; its rows belong to this one now."""
        record = self.model_copy(update=update)
        record.model_post_init(None)
        return record

    @model_validator(mode="after")
    def held_against_ceilings(self) -> "Record":
        for row in self.rows:
            if row.moved and row.mix not in self.ceilings["bandwidth"]:
                expected = f"expected a measured bandwidth ceiling for the mix {row.mix!r}"
                raise ValueError(f"{describe(row)}: {expected}, got {sorted(self.ceilings['bandwidth']) or 'none'}")
        return self


class Run(Model):
    """One run of a script. Of a GPU, `sources` is the hash of all that the script reached."""

    date: Date
    command: Text
    commit: str | None
    software: Versions
    machine: dict[str, Any]
    environment: dict[str, str] = {}
    sources: Text | None = None


class Section(Model):
    """A part of what a script printed, and which of the file's runs printed it."""

    section: str
    run: Annotated[int, Field(ge=0)]
    content: str


class Printed(Model):
    """What a script printed on a device, section by section (tests/benchmarks/captures.py)."""

    schema_: Annotated[int, Field(alias="schema")]
    script: Text
    device: Annotated[str, Field(pattern="^(cpu|cuda)$")]
    runs: Annotated[list[Run], Field(min_length=1)]
    sections: Annotated[list[Section], Field(min_length=1)]

    @cached_property
    def contents(self) -> dict[str, Section]:
        """The sections by name, in the order of printing."""
        return {section.section: section for section in self.sections}

    @model_validator(mode="after")
    def whole(self) -> "Printed":
        if len(self.contents) != len(self.sections):
            raise ValueError("expected each section once")
        if missing := {section.run for section in self.sections} - set(range(len(self.runs))):
            raise ValueError(f"expected runs 0 to {len(self.runs) - 1}, got {max(missing)}")
        return self


class Tried(Model):
    """An alternative to a launch table's entry, and its time."""

    options: dict[str, Any]
    in_the_table: bool
    time: Timing


class NotTried(Model):
    """An alternative that failed, and why."""

    options: dict[str, Any]
    reason: Text


class SweepPoint(Model):
    """What was tried at one point, fastest first; `asked` is what the table looks it up by."""

    part: str
    shape: Shape
    dtype: Text
    direction: Text
    asked: dict[str, int]
    bytes: Bytes
    tried: Annotated[list[Tried], Field(min_length=1)]
    failed: list[NotTried]

    @property
    def size(self) -> str:
        """What ran and the shape, as macros take it: "32768x4096", or "halves 32768x4096"."""
        return size(self.part, self.shape)


class Sweep(Provenance):
    """One run of tests/benchmarks/sweeps."""

    id: Text
    kernel: Text
    dirty: bool
    machine: dict[str, Any]
    sources: Sources
    points: list[SweepPoint]


class Outcome(Model):
    """How one test ended: passed, failed, error, skipped, xfailed or xpassed."""

    id: Text
    outcome: Annotated[str, Field(pattern="^(passed|failed|error|skipped|xfailed|xpassed)$")]
    seconds: Annotated[float, Field(ge=0)]
    reason: str = ""


class TestReport(Provenance):
    """One run of the tests on one machine (tests/report.py)."""

    __test__ = False  # not a test, whatever pytest makes of its name
    id: Text
    dirty: bool
    machine: dict[str, Any]
    deselected: Annotated[int, Field(ge=0)] | None = None  # reports of before it was counted do not say
    kernels: dict[str, str] | None = None  # hashes of the files that were tested
    tests: list[Outcome]

    @property
    def green(self) -> bool:
        """Whether it proves something: tests passed, and none ended otherwise than it should."""
        outcomes = {test.outcome for test in self.tests}
        return "passed" in outcomes and outcomes <= {"passed", "skipped", "xfailed"}


class Share(Model):
    """What the tests of an area or a file took, in processor seconds, or a command by the clock."""

    name: Text
    seconds: Annotated[float, Field(ge=0)]
    tests: Annotated[int, Field(ge=1)] | None = None


class Suite(Provenance):
    """What one run of tests, lint and docs took (tests/budget.py): `seconds` by the clock, in so many processes.

    Records without `reference` are of tests alone, and give the clock's seconds of areas and files.
    """

    dirty: bool
    machine: dict[str, Any]
    processes: Annotated[int, Field(ge=1)]
    seconds: Positive
    reference: Positive | None = None
    areas: Annotated[list[Share], Field(min_length=1)]
    files: list[Share]
    commands: list[Share] = []


Kind = TypeVar("Kind", bound=Model)


def read(path: Path, kind: type[Kind], root: Path, schema: int = SCHEMA) -> Kind:
    """A file as a record of a kind.

    Raises:
        PublishError: it is no whole JSON, has an unknown schema version, or something that is not as expected.
    """
    name = shown(path, root)
    try:
        content = json.loads(text := path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PublishError(
            f"{name}: expected a whole JSON file, got one that breaks off or is damaged: {error}"
        ) from error
    version = content.get("schema") if isinstance(content, dict) else None
    if version != schema or isinstance(version, bool):
        raise PublishError(f"{name}: expected schema version {schema}, got {version!r}")
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise PublishError(f"{name}: {'; '.join(_lines(error))}") from error


def shown(path: Path, root: Path) -> Path:
    """How messages name a file: from the root, where it is below that."""
    return path.relative_to(root) if path.is_relative_to(root) else path


def _lines(error: ValidationError) -> Iterator[str]:
    """The first three things that are wrong, where and how."""
    for problem in error.errors(include_url=False, include_context=False)[:3]:
        where = ".".join(map(str, problem["loc"]))
        came = "" if problem["type"] in ("missing", "value_error") else f", got {_short(problem['input'])}"
        yield f"{where}{': ' if where else ''}{problem['msg'].removeprefix('Value error, ')}{came}"
    if error.error_count() > 3:
        yield f"and {error.error_count() - 3} more"


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def describe(row: Row | Failure) -> str:
    """A row in words: "kernels/rms-norm ours backward 32768×4096 bfloat16 device"."""
    shape = units.size(row.size, "×")
    mode = f" {row.mode}" if isinstance(row, Row) else ""
    return f"{row.case} {row.variant} {row.direction} {shape} {row.dtype}{mode}"
