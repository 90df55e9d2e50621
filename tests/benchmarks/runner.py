"""Runs benchmark cases and writes what they measured as a record.

A record on disk is always whole: it is rewritten after every point, beside the file and then moved over it. How a point
is measured stands in method.py.
"""

import argparse
import contextlib
import gc
import importlib
import json
import math
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from snippets.validation.timing import yardstick
from tests.benchmarks import machine, method
from tests.benchmarks.case import Case, Point, of_module
from tests.benchmarks.functions import Code
from tests.benchmarks.method import Report
from tests.benchmarks.reviewed import version
from tests.benchmarks.source import ROOT
from tests.benchmarks.whole import write_whole

SCHEMA = 1
Points = dict[str, list[Point]]  # by case
Key = tuple[object, ...]  # what tells rows apart, without the variant


def discover(root: Path | None = None) -> dict[str, Path]:
    """Files with a `CASE`, by the name that it has, sorted: {"kernels/rope": tests/benchmarks/kernels/rope.py, ...}."""
    folder = (root or ROOT) / "tests" / "benchmarks"
    files = sorted(path for path in folder.rglob("*.py") if re.search("^CASE = ", path.read_text(), re.MULTILINE))
    return {str(path.relative_to(folder).with_suffix("")).replace("_", "-"): path for path in files}


def load(path: Path) -> Case:
    """The `CASE` of a case file, with its name and with the file's functions."""
    return of_module(importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)))


def sources_of(path: Path) -> tuple[dict, dict[str, str]]:
    """What the rows of a case measure, as they say it, and the functions that they can reach, each with its hash."""
    code, case_file = Code.of(ROOT), path.relative_to(ROOT).as_posix()
    reached = code.measured(case_file)
    files = {name.partition(":")[0] for name in reached.functions} - {case_file}
    own_first = sorted(files, key=lambda file: (Path(file).stem != path.stem, file))
    return {"hash": reached.hash, "files": [*own_first, case_file], "method": version(code)}, reached.functions


# ---- one run --------------------------------------------------------------------------------------------------------


class Record:
    """A run's record, on disk from the first finished point on."""

    def __init__(
        self, folder: Path, device: torch.device, command: str, commit: str | None, variants: Iterable[str] = ()
    ):
        now = datetime.now(UTC)
        described = machine.describe(device)
        commit, dirty = (commit, False) if commit else commit_of_tree()
        self.content: dict = {
            "schema": SCHEMA,
            "id": f"{now:%Y-%m-%dT%H-%M-%S-%fZ}-{described['slug']}",  # to the microsecond: runs may begin together
            "date": f"{now:%Y-%m-%dT%H:%M:%SZ}",
            "command": command,
            "commit": commit,
            "dirty": dirty,
            "machine": described | {"before": machine.state(device), "after": {}},
            "software": machine.software(),
            "ceilings": {},
            "floor": None,
            "host": None,
            "crew": 0,
            "variants": list(variants),
            "absent": {},
            "grid": {},
            "functions": {},
            "seconds": {},
            "alone": {},
            "rows": [],
            "failures": [],
        }
        self.path = folder / f"{self.content['id']}.json"
        self.device = device

    def add(self, name: str, point: Point, found: "Found", sources: dict) -> None:
        """Append what was measured at a point and write the whole record."""
        self.content["rows"] += [row | {"sources": sources} for row in found.rows]
        for failure in found.failures:
            if package := lacking(failure["reason"]):
                self.content["absent"][failure["variant"]] = package  # what was measured with it stays as it is
            else:
                self.content["failures"].append(failure)
        at = f"{name} {label(point)}"
        self.content["seconds"][at], self.content["alone"][at] = round(found.seconds, 1), round(found.alone, 1)
        self.write()

    def write(self) -> None:
        write_whole(self.path, self.content)


@dataclass
class Found:
    """What was measured at a point.

    Attributes:
        seconds: that it took, without waiting for others.
        spent: of them "alone", when samples were taken or what is fastest was chosen; of these "choosing", and each
            mode. Beside them "settled", until what others had queued on the GPU had run, before each turn.
        waited: before they began, seconds until others had left enough of the GPU's memory.
    """

    rows: list[dict] = field(default_factory=list)
    failures: list[dict] = field(default_factory=list)
    seconds: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)
    waited: float = 0.0

    @property
    def alone(self) -> float:
        return self.spent.get("alone", 0.0)


def measured(name: str, point: Point, device: torch.device, report: Report) -> Found:
    """Measure a point here; its rows have no sources yet."""
    case = load(discover()[name])
    began, before = machine.clock(), dict(machine.spent)
    precision = torch.get_float32_matmul_precision()
    try:
        found = Found(*method.measure_point(case, point, device, {}, report))
    except torch.OutOfMemoryError as error:  # the inputs or the float64 reference: too much for this GPU
        found = Found(failures=[method.where(case, point) | {"variant": "*", "reason": method.one_line(error)}])
    finally:
        torch.set_float32_matmul_precision(precision)  # it is the process's: a point with TF32 would leave it to others
    tidy(device)
    found.seconds = machine.clock() - began
    found.spent = {what: seconds - before.get(what, 0.0) for what, seconds in machine.spent.items()}
    return found


def limits(device: torch.device) -> dict:
    """What this machine can do at most, what the timer reads at least, and how fast the host is."""
    with machine.turn(device, alone=True):
        found = {"ceilings": method.ceilings(device), "floor": method.floor(device)}
    with machine.turn(device, alone=True, calls=True):
        return found | {"host": yardstick(device)}


def plan(
    names: Iterable[str],
    device: torch.device,
    modes: Collection[str] = (),
    fresh: Set[Key] = frozenset(),
    variants: Iterable[str] = (),
    numbers: Collection[int] = (),
    unshown: bool = False,
) -> Points:
    """What to measure: the cases' points on this device, without those that are fresh.

    In some modes or all, and of each point some variants or all that it asks for. `numbers` chooses points by their
    place in the case, from 1: so several GPUs can share a case. Points that no page shows are `unshown`.
    """
    only = frozenset(variants)
    files, todo = discover(), {}
    for name in names:
        case = load(files[name])
        code = code_of(sources_of(files[name])[0]) if fresh else ()
        numbered = enumerate(case.points(device), 1)
        asked = [p for number, p in numbered if number in numbers or (not numbers and (p.shown or unshown))]
        points = [replace(p, modes=tuple(m for m in p.modes if m in modes or not modes)) for p in asked]
        if only:
            points = [replace(p, variants=tuple(only if p.variants is None else only & {*p.variants})) for p in points]
        left = [p for p in points if p.modes and not {key(method.where(case, p), m, code) for m in p.modes} <= fresh]
        if left:
            todo[name] = left
    return todo


Outcomes = Generator[tuple[str, Point, Found], None, None]


def run(
    device: torch.device,
    record: Record,
    measuring: Callable[[], Outcomes],
    progress: Callable[[Outcomes], Outcomes],
) -> int:
    """Keep what is measured at each point in the record; returns at how many that was. It is written after each."""
    files, sources = discover(), {}
    done = 0
    with contextlib.closing(measuring()) as outcomes:
        for name, point, found in progress(outcomes):
            if name not in sources:
                sources[name], record.content["functions"][name] = sources_of(files[name])
                # what is no longer in it is history
                points = load(files[name]).points(device)
                record.content["grid"][name] = [f"{label(p)} {mode}" for p in points for mode in p.modes]
            record.add(name, point, found, sources[name])
            done += 1
    gc.unfreeze()
    if done:
        record.content["machine"]["after"] = machine.state(device)
        record.write()
    return done


def one_by_one(
    todo: Points, device: torch.device, record: Record, report: Report, seconds: float = math.inf
) -> Outcomes:
    """Measure here, the first point of each case first, then the second ones, until the seconds are used up."""
    last = time.monotonic() + seconds
    report("ceilings")
    record.content |= limits(device)
    for name, point in in_rounds(todo):
        report(f"{name} {label(point)}")
        yield name, point, measured(name, point, device, report)
        if time.monotonic() > last:
            break


def in_rounds(todo: Points) -> list[tuple[str, Point]]:
    """The first point of each case, then the second ones, and so on."""
    most = max(map(len, todo.values()), default=0)
    return [(name, points[turn]) for turn in range(most) for name, points in todo.items() if turn < len(points)]


def tidy(device: torch.device) -> None:
    """Forget what a point has compiled, and keep the collections of the next one short.

    The timer collects garbage before each measurement, and looks at all objects of torch to do so. What is left here is
    frozen: it is looked at once a point.
    """
    torch._dynamo.reset()
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def label(point: Point) -> str:
    """A point without its modes: "forward gelu 32768x4096 bfloat16"."""
    return f"{point.direction} {size(point.part, point.shape)} {point.dtype}"


def size(part: str, shape: Mapping[str, int]) -> str:
    """What runs and its sizes, as pages name them: "gelu 32768x4096", or "32768x4096" where nothing else runs."""
    return f"{part} {'x'.join(map(str, shape.values()))}".lstrip()


def key(at: Mapping, mode: str, code: Key) -> Key:
    """Of a point in a mode, and of the code measured there."""
    return at["case"], at["direction"], at.get("part", ""), *at["shape"].items(), at["dtype"], mode, *code


def code_of(sources: Mapping) -> Key:
    """What tells the code that a row measured, and the method, from others."""
    return sources["hash"], sources.get("method")


def fresh_points(folder: Path, device: torch.device, variants: Iterable[str] = ()) -> set[Key]:
    """What this kind of machine has measured already, with this software: all variants, or the same."""
    slug, versions = machine.describe(device)["slug"], machine.software()
    fresh: set[Key] = set()
    for path in folder.glob("*.json"):
        try:
            content = json.loads(path.read_text())
            whole = {*content.get("variants", ())} in (set(), {*variants})
            if whole and content["machine"]["slug"] == slug and content["software"] == versions:
                counted = [row for row in content["rows"] if row["kernels"] is not None]
                known = counted or content["rows"]  # on a CPU, and where the profiler is refused, no row has a count
                quiet = [row for row in known if not row.get("busy")]
                fresh |= {key(row, row["mode"], code_of(row["sources"])) for row in quiet}
        except (ValueError, KeyError, TypeError):
            continue  # not a record: the site's build says so, with the file's name
    return fresh


def published_command(program: str, arguments: Iterable[str], own: tuple[str, ...]) -> str:
    """The command line as others would type it: without our `own` options, each of which takes a value."""
    shown, skip = [program], False
    for argument in arguments:
        if skip or argument in own:
            skip = not skip
        elif not argument.startswith(tuple(f"{option}=" for option in own)):
            shown.append(shlex.quote(argument))
    return " ".join(shown)


def lacking(reason: str) -> str:
    """The package for want of which a variant failed, by why it did; "" where nothing was lacking."""
    if "CUTE flash attention library is not available" in reason:
        return "flash_attn"
    missing = re.match(r"ModuleNotFoundError: No module named '(\w+)", reason)
    return missing[1] if missing else ""


def commit_hash(text: str) -> str:
    """What `--commit` takes: a record that names no commit is no evidence. Git abbreviates to four digits at least."""
    if not re.fullmatch("[0-9a-f]{4,40}", text):
        raise argparse.ArgumentTypeError(f"expected the hash of a commit, got {text!r}")
    return text


def commit_of_tree() -> tuple[str | None, bool]:
    """The commit of the checkout and whether it has uncommitted changes; (None, True) outside a checkout."""
    try:
        commit = _git("rev-parse", "HEAD")
        return commit, bool(_git("status", "--porcelain"))
    except (OSError, subprocess.CalledProcessError):
        return None, True


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
