"""How a number comes about: every variant of a case is built, checked and timed at one point, side by side.

What stands here decides what a number means, and is part of the hash by which it goes stale (source.py). What only
finds cases and writes records stands in runner.py.
"""

import gc
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial

import torch

from snippets.validation import equivalence
from snippets.validation.equivalence import Agreement
from snippets.validation.roofline import Ceiling, bandwidth, matrix_rate
from snippets.validation.timing import Call, Timing, captured, measure, nothing, sampler
from tests.benchmarks import machine
from tests.benchmarks.case import Case, Point, Results, Variant, Workload

Report = Callable[[str], None]
PATIENCE = 2.0  # seconds after which no round begins, see `measure`
ROUNDS = {"device": 30, "graph": 30, "calls": 10, "burst": 10, "sustained": 2}


class WrongResult(Exception):
    """A variant computes something else than the reference; it gets no time."""


def measure_point(case: Case, point: Point, device: torch.device, sources: dict, report: Report) -> tuple[list, list]:
    """Build, check and time every variant at one point. Returns (rows, failures)."""
    common = where(case, point)
    workload, ready, failures = built_and_checked(case, point, device, report)
    rows = []
    gc.collect()  # the timer collects again before each mode, and looks at nothing twice
    gc.freeze()
    hand_back(device)
    for mode in point.modes if ready else ():
        report(f"{mode}: {len(ready)} variants side by side")
        with machine.turn(device, alone=True, calls=mode == "calls"):
            began = machine.clock()
            timings, refused, about = timed_on_this_host(ready, workload, device, mode)
            machine.spent[mode] += machine.clock() - began
        failures += [common | {"variant": name, "reason": f"{mode}: {reason}"} for name, reason in refused.items()]
        for name, timing in timings.items():
            rows.append(
                common | {"variant": name, "mode": mode} | row(workload, name, ready[name], timing, sources) | about
            )
    return rows, failures


def built_and_checked(
    case: Case, point: Point, device: torch.device, report: Report
) -> tuple[Workload, dict[str, dict], list]:
    """The workload at a point, what is known of each variant that is right, and why the others failed."""
    torch.manual_seed(0)
    with machine.turn(device, alone=False):
        workload = case.prepare(point, device)
        reference = workload.reference()
        hand_back(device)  # others may need what float64 took
    common = where(case, point)
    ready: dict[str, dict] = {}
    failures: list[dict] = []
    baseline: Results | None = None
    for name in wanted(workload, point):
        report(name)
        variant = workload.variants[name]
        with machine.turn(device, alone=variant.chooses_by_timing, builds=True):
            try:
                built, results = build(variant)
                if baseline is None and name != workload.baseline:
                    raise WrongResult(f"not timed: nothing to hold it against, since {workload.baseline} failed")
                built["agreement"] = check(results, baseline or results, reference, workload)
            except Exception as error:
                if isinstance(error, torch.OutOfMemoryError) and machine.beside.crowded:
                    raise
                failures.append(common | {"variant": name, "reason": one_line(error)})
                continue
            finally:
                hand_back(device)
            if baseline is None:
                baseline = results
                if passed := what_passes(baseline, reference, workload):
                    reason = f"nothing timed: the check lets pass what is wrong: {', '.join(passed)}"
                    return workload, {}, [common | {"variant": "*", "reason": reason}]
            if "graph" in point.modes:
                try:
                    check_replay(built["call"], variant, baseline, reference, workload)
                    built["graph"] = True
                except Exception as error:  # noqa: BLE001  a call that cannot be captured is a fact worth recording
                    failures.append(common | {"variant": name, "reason": f"graph: {one_line(error)}"})
            built["peak_memory"] = peak_memory(built["call"], variant, device)
        ready[name] = built
    with machine.turn(device, alone=False):
        calls = {name: (workload.variants[name].refresh or nothing, built["call"]) for name, built in ready.items()}
        kernels = count_kernels(calls, device)
    for name, built in ready.items():
        built["kernels"] = kernels.get(name)
    return workload, ready, failures


def what_passes(baseline: Results, reference: Results, workload: Workload) -> list[str]:
    """Which of the wrong results that a case names its check would let pass."""

    def passes(spoil: Callable[[Results], Results]) -> bool:
        try:
            check(spoil(copies(baseline)), baseline, reference, workload)
        except WrongResult:
            return False
        return True

    return [what for what, spoil in workload.wrong.items() if passes(spoil)]


def where(case: Case, point: Point) -> dict:
    """What the rows and failures of a point share."""
    return {
        "case": case.name,
        "direction": point.direction,
        "part": point.part,
        "shape": dict(point.shape),
        "dtype": point.dtype,
    }


def wanted(workload: Workload, point: Point) -> list[str]:
    """The variants to build at a point: the baseline first, since its error sets the bound."""
    others = [name for name in workload.variants if name != workload.baseline]
    return [workload.baseline] + [name for name in others if point.variants is None or name in point.variants]


def build(variant: Variant) -> tuple[dict, Results]:
    """Compile a variant and call it; the first call's seconds are its build time.

    The results are those of the fourth call, on the same inputs: a call that changes them and does not say so is found
    out, and what torch.compile captures in a CUDA graph is replayed for the first time in the third.
    """
    refresh = variant.refresh or nothing
    _synchronize()
    began = machine.clock()
    call = variant.build()
    refresh()
    call()
    _synchronize()
    seconds = machine.clock() - began
    for _ in range(2):
        refresh()
        call()
    refresh()
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


def check_replay(call: Call, variant: Variant, baseline: Results, reference: Results, workload: Workload) -> None:
    """Whether a replay of the call in a CUDA graph computes: the outputs are spoilt before it.

    Raises:
        WrongResult: it does not.
    """
    replay, refresh = captured(call), variant.refresh or nothing
    with torch.no_grad():
        for tensor in variant.results(replay()).values():
            tensor.detach().fill_(float("nan"))
    refresh()
    check(copies(variant.results(replay())), baseline, reference, workload)


def timed_on_this_host(
    ready: dict[str, dict], workload: Workload, device: torch.device, mode: str
) -> tuple[dict[str, Timing], dict[str, str], dict]:
    """As time_variants; and why the host was too busy to be timed, if its clock was read."""
    watch = machine.Watch()
    timings, refused = time_variants(ready, workload, device, mode)
    return timings, refused, {"busy": watch.busy() if mode == "calls" else ""}


def time_variants(
    ready: dict[str, dict], workload: Workload, device: torch.device, mode: str
) -> tuple[dict[str, Timing], dict[str, str]]:
    """Time the variants side by side; those that cannot be timed in this mode are returned with the reason."""
    calls = {name: built["call"] for name, built in ready.items() if mode != "graph" or "graph" in built}
    refresh = {name: workload.variants[name].refresh or nothing for name in calls}
    timings, refused = {}, {}
    for name in list(calls):
        own_timer = workload.variants[name].timer
        try:
            if own_timer:
                timings[name] = own_timer(calls.pop(name), device)
            elif mode in ("device", "graph"):  # one that waits for the GPU has no time there: find out before all run
                sampler("device", device)(calls[name], refresh[name])  # its own: it may need a long spin
        except RuntimeError as error:
            refused[name] = one_line(error)
            calls.pop(name, None)
    return timings | measure(calls, device, mode, ROUNDS[mode], PATIENCE, refresh), refused


def row(workload: Workload, name: str, built: dict, timing: Timing, sources: dict) -> dict:
    """The measured half of a row; times in seconds, sizes in bytes."""
    time = asdict(timing)
    return {
        "calls": time.pop("calls"),
        "time": time,
        "refreshed": workload.variants[name].refresh is not None,
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


def peak_memory(call: Call, variant: Variant, device: torch.device) -> int | None:
    """Bytes that a call allocates at its peak beyond what was there before; None on a CPU."""
    if device.type != "cuda":
        return None
    (variant.refresh or nothing)()
    _synchronize()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    _synchronize()
    return torch.cuda.max_memory_allocated(device) - before


def count_kernels(calls: Mapping[str, tuple[Call, Call]], device: torch.device) -> dict[str, int]:
    """Kernels that a call launches on the GPU, by name; nothing on a CPU, or where the profiler is refused.

    Args:
        calls: by name, what puts back a call's inputs, which does not count, and the call.
    """
    if device.type != "cuda" or not calls:
        return {}
    from torch.profiler import ProfilerActivity, profile

    steps = [step for pair in calls.values() for step in pair]
    for step in steps:
        step()
    _synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:  # without, it warns
        for step in steps:  # a trace of its own for each would take seconds to start: a spin stands between two
            step()
            _synchronize()
            torch.cuda._sleep(0)
            _synchronize()
    on_gpu = [event for event in trace.events() if event.device_type.name == "CUDA"]
    names = [event.name for event in sorted(on_gpu, key=lambda event: event.time_range.start)]
    counts = launched(names)[1::2]
    return dict(zip(calls, counts, strict=True)) if len(counts) == len(calls) else {}  # else it has not seen all


def launched(names: Iterable[str]) -> list[int]:
    """How many kernels there are before each spin. What copies and fills is none."""
    counts = [0]
    for name in names:
        if "spin_kernel" in name:
            counts.append(0)
        elif not name.startswith(("Memcpy", "Memset")):
            counts[-1] += 1
    return counts[:-1]


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


def floor(device: torch.device) -> dict | None:
    """What the timer reads of an empty kernel: no GPU time is below it. A CPU has none."""
    if device.type != "cuda":
        return None
    return asdict(measure({"empty": partial(torch.cuda._sleep, 0)}, device, "device", ROUNDS["device"])["empty"])


def _ceiling(best: Ceiling) -> dict:
    return {"rate": best.rate, "by": best.by, "time": asdict(best.timing)}


def hand_back(device: torch.device) -> None:
    """Memory of the GPU that nothing uses any more: other processes may need it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def one_line(error: Exception) -> str:
    """What an exception says, in at most 400 characters of one line."""
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())  # without a terminal's colours
    return (text if isinstance(error, WrongResult) else f"{type(error).__name__}: {text}")[:400]
