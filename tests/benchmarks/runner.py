"""Runs benchmark cases and writes what they measured as a record.

A record on disk is always whole: it is rewritten after every case, beside the file and then moved over it.
"""

import argparse
import hashlib
import importlib
import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch

from snippets.validation import equivalence
from snippets.validation.equivalence import Agreement
from snippets.validation.roofline import Ceiling, bandwidth, matrix_rate
from snippets.validation.timing import Call, Timing, captured, measure, sampler
from tests.benchmarks import machine
from tests.benchmarks.case import Case, Point, Results, Variant, Workload
from tests.benchmarks.source import ROOT, digest

SCHEMA = 1
Report = Callable[[str], None]


def discover() -> dict[str, Path]:
    """Files with a `CASE`, by the name that it has, sorted: {"kernels/rope": tests/benchmarks/kernels/rope.py, ...}."""
    folder = ROOT / "tests" / "benchmarks"
    files = sorted(path for path in folder.rglob("*.py") if re.search("^CASE = ", path.read_text(), re.MULTILINE))
    return {str(path.relative_to(folder).with_suffix("")).replace("_", "-"): path for path in files}


def load(path: Path) -> Case:
    """The `CASE` of a case file."""
    return importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)).CASE


def sources_of(case: Case, path: Path) -> dict:
    """What a row measured: the files, and the hash of their syntax trees."""
    case_file = path.relative_to(ROOT).as_posix()
    return {"hash": digest(case_file, case.sources, ROOT), "files": [*case.sources, case_file]}


# ---- one point ------------------------------------------------------------------------------------------------------


class WrongResult(Exception):
    """A variant computes something else than the reference; it gets no time."""


def measure_point(case: Case, point: Point, device: torch.device, sources: dict, report: Report) -> tuple[list, list]:
    """Build, check and time every variant at one point. Returns (rows, failures)."""
    common = where(case, point)
    # the variants that are slow to build choose by timing
    with machine.turn(device, alone=point.variants is None):
        workload, ready, failures = built_and_checked(case, point, device, report)
    rows = []
    for mode in point.modes:
        report(f"{mode}: {len(ready)} variants side by side")
        with machine.turn(device, alone=True, calls=mode == "calls"):
            timings, refused = time_variants(ready, workload, device, mode)
        failures += [common | {"variant": name, "reason": f"{mode}: {reason}"} for name, reason in refused.items()]
        for name, timing in timings.items():
            rows.append(common | {"variant": name, "mode": mode} | row(workload, ready[name], timing, sources))
    return rows, failures


def built_and_checked(
    case: Case, point: Point, device: torch.device, report: Report
) -> tuple[Workload, dict[str, dict], list]:
    """The workload at a point, what is known of each variant that is right, and why the others failed."""
    torch.manual_seed(0)
    workload = case.prepare(point, device)
    common = where(case, point)
    ready: dict[str, dict] = {}
    failures: list[dict] = []
    reference = workload.reference()
    baseline: Results | None = None
    for name in wanted(workload, point):
        report(name)
        try:
            built, results = build(workload.variants[name])
            if baseline is None and name != workload.baseline:
                raise WrongResult(f"not timed: nothing to hold it against, since {workload.baseline} failed")
            yardstick = results if baseline is None else baseline
            built["agreement"] = check(results, yardstick, reference, workload)
            baseline = yardstick
        except Exception as error:  # noqa: BLE001  a peer may fail in any way; what it said is recorded
            failures.append(common | {"variant": name, "reason": one_line(error)})
            continue
        if "graph" in point.modes:
            try:
                built["replay"] = checked_replay(built["call"], workload.variants[name], baseline, reference, workload)
            except Exception as error:  # noqa: BLE001  a call that cannot be captured is a fact worth recording
                failures.append(common | {"variant": name, "reason": f"graph: {one_line(error)}"})
        built["peak_memory"] = peak_memory(built["call"], device)
        built["kernels"] = count_kernels(built["call"], device)
        ready[name] = built
    return workload, ready, failures


def where(case: Case, point: Point) -> dict:
    """What the rows and failures of a point share."""
    return {"case": case.name, "direction": point.direction, "shape": dict(point.shape), "dtype": point.dtype}


def wanted(workload: Workload, point: Point) -> list[str]:
    """The variants to build at a point: the baseline first, since its error sets the bound."""
    others = [name for name in workload.variants if name != workload.baseline]
    return [workload.baseline] + [name for name in others if point.variants is None or name in point.variants]


def build(variant: Variant) -> tuple[dict, Results]:
    """Compile a variant and call it; the first call's seconds are its build time.

    The results are those of the fourth call, on the same inputs: a call that changes them is found out, and what
    torch.compile captures in a CUDA graph is replayed for the first time in the third.
    """
    _synchronize()
    began = time.perf_counter()
    call = variant.build()
    call()
    _synchronize()
    seconds = time.perf_counter() - began
    for _ in range(2):
        call()
    results = copies(variant.results(call()))
    return {"call": call, "build_seconds": seconds, "binaries": binaries(variant)}, results


def copies(results: Results) -> Results:
    """The results as they are now: later calls may write to the same memory."""
    return {name: tensor.detach().clone() for name, tensor in results.items()}


def check(results: Results, baseline: Results, reference: Results, workload: Workload) -> Agreement:
    """The agreement of the result that comes closest to its bound.

    Raises:
        WrongResult: a result misses its bound, or is missing.
    """
    try:
        agreements = equivalence.check(results, baseline, reference, workload.largest_summands)
    except AssertionError as error:
        raise WrongResult(f"wrong result, not timed: {error}") from error
    return max(agreements.values(), key=lambda agreement: agreement.error / max(agreement.bound, 1e-300))


def checked_replay(call: Call, variant: Variant, baseline: Results, reference: Results, workload: Workload) -> Call:
    """The call in a CUDA graph, once it is seen that a replay computes: the outputs are spoilt before it."""
    replay = captured(call)
    with torch.no_grad():
        for tensor in variant.results(replay()).values():
            tensor.detach().fill_(float("nan"))
    check(copies(variant.results(replay())), baseline, reference, workload)
    return replay


def time_variants(
    ready: dict[str, dict], workload: Workload, device: torch.device, mode: str
) -> tuple[dict[str, Timing], dict[str, str]]:
    """Time the variants side by side; those that cannot be timed in this mode are returned with the reason."""
    clock, kind = ("device", "replay") if mode == "graph" else (mode, "call")
    calls = {name: built[kind] for name, built in ready.items() if kind in built}
    timings, refused = {}, {}
    sample = sampler(clock, device)
    for name in list(calls):
        own_timer = workload.variants[name].timer
        try:
            if own_timer:
                timings[name] = own_timer(calls.pop(name), device)
            elif clock == "device":
                sample(calls[name])  # one that waits for the GPU has no device time: find out before the others run
        except RuntimeError as error:
            refused[name] = one_line(error)
            calls.pop(name, None)
    rounds = {"device": 100, "calls": 30, "burst": 20, "sustained": 3}[clock]
    return timings | measure(calls, device, clock, rounds), refused


def row(workload: Workload, built: dict, timing: Timing, sources: dict) -> dict:
    """The measured half of a row; times in seconds, sizes in bytes."""
    return {
        "time": asdict(timing),
        "bytes_read": workload.bytes_read,
        "bytes_written": workload.bytes_written,
        "flops": workload.flops,
        "mix": workload.mix,
        "peak_memory_bytes": built["peak_memory"],
        "kernels": built["kernels"],
        "error": {"value": built["agreement"].error, "bound": built["agreement"].bound},
        "build_seconds": built["build_seconds"],
        "binaries": built["binaries"],
        "sources": sources,
    }


def binaries(variant: Variant) -> list[dict]:
    """Hash, registers and spills of the compiled kernels that are ours."""
    if variant.binaries is None:
        return []
    return [
        {
            "name": name,
            "hash": hashlib.sha256(kernel.asm["cubin"]).hexdigest()[:16],
            "registers": kernel.n_regs,
            "spills": kernel.n_spills,
            "shared_bytes": kernel.metadata.shared,
            "warps": kernel.metadata.num_warps,
        }
        for name, kernel in variant.binaries().items()
    ]


def peak_memory(call: Call, device: torch.device) -> int | None:
    """Bytes that a call allocates at its peak beyond what was there before; None on a CPU."""
    if device.type != "cuda":
        return None
    _synchronize()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    _synchronize()
    return torch.cuda.max_memory_allocated(device) - before


def count_kernels(call: Call, device: torch.device) -> int | None:
    """Kernels that one call launches on the GPU; None on a CPU, or where the profiler is refused."""
    if device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    call()
    _synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:  # without, it warns
        call()
        _synchronize()
    on_gpu = [event.name for event in trace.events() if event.device_type.name == "CUDA"]
    if not on_gpu:
        return None  # the profiler saw nothing
    return sum(not name.startswith(("Memcpy", "Memset")) for name in on_gpu)


# ---- one run --------------------------------------------------------------------------------------------------------


class Record:
    """A run's record, on disk from the first finished case on."""

    def __init__(self, folder: Path, device: torch.device, command: str, commit: str | None):
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
            "rows": [],
            "failures": [],
        }
        self.path = folder / f"{self.content['id']}.json"
        self.device = device

    def add(self, rows: list, failures: list) -> None:
        """Append what a case measured and write the whole record."""
        self.content["rows"] += rows
        self.content["failures"] += failures
        self.content["machine"]["after"] = machine.state(self.device)
        write_whole(self.path, self.content)


def run(names: Iterable[str], device: torch.device, record: Record, report: Report, progress: Callable) -> None:
    """Measure the ceilings, then each named case; the record is written after each of them."""
    files = discover()
    report("ceilings")
    with machine.turn(device, alone=True):
        record.content["ceilings"] = ceilings(device)
    for name in names:
        case = load(files[name])
        sources = sources_of(case, files[name])
        rows: list = []
        failures: list = []
        for point in progress(list(case.points(device)), name):
            try:
                timed, failed = measure_point(case, point, device, sources, report)
            except torch.OutOfMemoryError as error:  # the inputs or the float64 reference: too much for this GPU
                timed, failed = [], [where(case, point) | {"variant": "*", "reason": one_line(error)}]
            rows += timed
            failures += failed
            torch._dynamo.reset()
            if device.type == "cuda":
                torch.cuda.empty_cache()
        record.add(rows, failures)


def ceilings(device: torch.device) -> dict:
    """Bandwidth by traffic mix (bytes/s) and matrix rate by dtype and regime (FLOP/s), as the roofline page does."""
    on_gpu = device.type == "cuda"
    matrix = {
        str(dtype).removeprefix("torch."): matrix_rate(device, 8192 if on_gpu else 1024, dtype)
        for dtype in ((torch.bfloat16, torch.float16) if on_gpu else (torch.float32,))
    }
    return {
        "bandwidth": {mix: _ceiling(best) for mix, best in bandwidth(device, 2**29 if on_gpu else 2**25).items()},
        "matrix": {dtype: {mode: _ceiling(best) for mode, best in rates.items()} for dtype, rates in matrix.items()},
    }


def _ceiling(best: Ceiling) -> dict:
    return {"rate": best.rate, "by": best.by, "time": asdict(best.timing)}


def fresh_cases(folder: Path, names: Iterable[str], device: torch.device) -> set[str]:
    """Cases that this machine has measured already, with these sources and this software."""
    slug, versions = machine.describe(device)["slug"], machine.software()
    files = discover()
    current = {name: sources_of(load(files[name]), files[name])["hash"] for name in names}
    fresh = set()
    for path in folder.glob("*.json"):
        try:
            content = json.loads(path.read_text())
            if content["machine"]["slug"] == slug and content["software"] == versions:
                hashes = {row["case"]: row["sources"]["hash"] for row in content["rows"]}
                fresh |= {name for name, known in hashes.items() if current.get(name) == known}
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


def write_whole(path: Path, content: dict) -> None:
    """Write JSON so that a reader, or an interruption, never meets half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.partial")
    try:
        beside.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def one_line(error: Exception) -> str:
    """What an exception says, in at most 400 characters of one line."""
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())  # without a terminal's colours
    return (text if isinstance(error, WrongResult) else f"{type(error).__name__}: {text}")[:400]
