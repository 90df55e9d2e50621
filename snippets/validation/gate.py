"""Is the new code slower than the old? A performance gate for CI, in one file that needs the standard library only.

    python gate.py benchmark.py --old ../base            both checkouts in this job, taking turns
    python gate.py benchmark.py --store baseline.json    numbers to keep, where the old code cannot run beside the new
    python gate.py benchmark.py --against baseline.json  the new code against such numbers, on the same machine

`benchmark.py` defines `benchmark()`: it prepares, and returns the call to time, or several by name in a dict. With
`--old`, the same benchmark file runs on both sides; what it imports comes from the folder that each side runs in.

Exit status: 0 not slower, 1 slower, 3 not judged (the message says what noise was in the way), 2 something failed.
"""

import argparse
import contextlib
import gc
import json
import math
import os
import platform
import random
import runpy
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

PAIRS = 10  # of processes, before the first look: the fewest whose smallest and largest are an interval at WRONG
LOOKS = 3  # after each, ten more pairs run if nothing can be said yet
WRONG = 0.001  # chance, at each look and at each end, that the interval misses
STATUS = {"not slower": 0, "slower": 1, "not judged": 3}

Samples = dict[str, dict[str, list[float]]]  # seconds per call: by benchmark, by side


# ---- what the numbers say -------------------------------------------------------------------------------


# --8<-- [start:interval]
def interval(values: Sequence[float], wrong: float = WRONG) -> tuple[float, float]:
    """Between which of the values the median of their source lies; wrong below and above with chance `wrong` each.

    Each independent value is below that median as a coin falls heads, whatever the distribution. So it lies below the
    smallest of ten only if all ten coins fall alike. With few values the interval is everything.
    """
    ordered, cut = sorted(values), 0
    tail = 0.5 ** len(ordered)
    while tail <= wrong:
        cut += 1
        tail += math.comb(len(ordered), cut) * 0.5 ** len(ordered)
    return (ordered[cut - 1], ordered[-cut]) if cut else (0.0, math.inf)


# --8<-- [end:interval]


# --8<-- [start:judge]
@dataclass(frozen=True)
class Verdict:
    """What was found: `status` is "not slower", "slower" or "not judged"; `ratio` is new over old, in [low, high]."""

    status: str
    ratio: float
    low: float
    high: float


def judge(ratio: float, low: float, high: float, limit: float) -> Verdict:
    """Slower, if no change is ruled out; not slower, if a slowdown of `limit` (0.05: 5%) is; by the side it is on."""
    slow = 1 + limit
    if ratio >= math.sqrt(slow):
        return Verdict("slower" if low > 1 else "not judged", ratio, low, high)
    return Verdict("not slower" if high < slow else "not judged", ratio, low, high)


# --8<-- [end:judge]


# --8<-- [start:ratio]
def ratio_of(old: Sequence[float], new: Sequence[float]) -> float:
    """New over old within one pair of processes: the median of neighbours' ratios, so that drift cancels."""
    return statistics.median(b / a for a, b in zip(old, new, strict=True))


def paired(ratios: Sequence[float], limit: float) -> Verdict:
    """The verdict on independent pairs of processes, one ratio each."""
    return judge(statistics.median(ratios), *interval(ratios), limit)


# --8<-- [end:ratio]


def unpaired(old: Sequence[float], new: Sequence[float], limit: float) -> Verdict:
    """The verdict on stored medians of processes and new ones. Both intervals must hold, each at half the chance."""
    (old_low, old_high), (new_low, new_high) = (interval(values, WRONG / 2) for values in (old, new))
    if not old_low:
        return Verdict("not judged", statistics.median(new) / statistics.median(old), 0.0, math.inf)
    return judge(statistics.median(new) / statistics.median(old), new_low / old_high, new_high / old_low, limit)


# ---- one side: a process that holds the benchmarks and takes a sample when asked ------------------------


# --8<-- [start:sample]
def synchronize() -> None:
    """A GPU works on after the call has returned."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()


def seconds_per_call(call: Callable[[], object], calls: int) -> float:
    """Wall-clock seconds per call over some calls in a row, after one that warms up what another process has cooled."""
    call()
    synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize()
    return (time.perf_counter() - began) / calls


def calls_that_take(seconds: float, call: Callable[[], object]) -> int:
    """How many calls make a sample. One side decides for both."""
    calls = 1
    while (elapsed := calls * seconds_per_call(call, calls)) < seconds:
        calls = max(2 * calls, math.ceil(calls * seconds / max(elapsed, 1e-9)))
    return calls


# --8<-- [end:sample]


def yardstick() -> None:
    """Work of fixed size that no change of code touches: how fast is this machine today?"""
    total = 0
    for number in range(20_000):
        total += number * number


def serve(file: str, function: str) -> None:
    """Prepare the benchmarks, then answer each line of standard input, [what, benchmark, number], with a number."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the benchmark prints goes elsewhere
    sys.path.insert(0, os.getcwd())
    prepared = runpy.run_path(file)[function]()
    calls = prepared if isinstance(prepared, dict) else {function: prepared}
    for call in calls.values():
        for _ in range(3):  # compiles, allocates, fills caches
            call()
    gc.collect()
    gc.disable()
    print(json.dumps(list(calls)), file=answers, flush=True)
    asked = {"seconds": seconds_per_call, "calls": lambda call, seconds: calls_that_take(seconds, call)}
    for line in sys.stdin:
        what, name, number = json.loads(line)
        found = asked[what](calls[name] if name else yardstick, number)
        print(json.dumps([found, time.process_time()]), file=answers, flush=True)


@dataclass(frozen=True)
class Side:
    """How to start one side: the benchmark's file and function, the folder that it imports from, and which Python."""

    file: str
    function: str = "benchmark"
    folder: str = "."
    python: str = sys.executable


class Failed(Exception):
    """A side did not answer; what it said went to standard error."""


class Process:
    """One running side.

    Attributes:
        benchmarks: their names.
        processor_seconds: what it has used of the processor since it was ready.
    """

    def __init__(self, side: Side):
        command = [side.python, str(Path(__file__).resolve()), "--serve", side.function, str(Path(side.file).resolve())]
        self._process = subprocess.Popen(
            command, cwd=side.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.folder, self.benchmarks, self.processor_seconds = side.folder, list[str](), 0.0

    def ready(self) -> None:
        self.benchmarks = self._answer()

    def ask(self, what: str, benchmark: str, number: float) -> float:
        print(json.dumps([what, benchmark, number]), file=self._pipe(self._process.stdin), flush=True)
        found, self.processor_seconds = self._answer()
        return found

    def _answer(self) -> Any:
        line = self._pipe(self._process.stdout).readline()
        if not line:
            raise Failed(f"the benchmark in {self.folder} ended with status {self._process.wait()}")
        return json.loads(line)

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


# ---- taking turns ---------------------------------------------------------------------------------------


# --8<-- [start:turns]
def take_turns(sides: Mapping[str, Side], samples: int, seconds: float, chance: random.Random) -> tuple[Samples, float]:
    """Start a process for each side, let them take samples in turn, and end them.

    The order is drawn anew each time: who comes first is no advantage. Other processes, other memory addresses, another
    hash seed: what differs between two starts of the same program differs from one call of this function to the next.

    Returns:
        The samples, and the seconds of processor time that they took.
    """
    with started(sides, chance) as running:
        first = next(iter(running.values()))
        taken: Samples = {name: {side: [] for side in sides} for name in first.benchmarks}
        calls = {name: first.ask("calls", name, seconds) for name in taken}
        used = sum(process.processor_seconds for process in running.values())
        for _ in range(samples):
            for name, by_side in taken.items():
                for side in chance.sample(list(sides), len(sides)):
                    by_side[side].append(running[side].ask("seconds", name, calls[name]))
        return taken, sum(process.processor_seconds for process in running.values()) - used


# --8<-- [end:turns]


@contextlib.contextmanager
def started(sides: Mapping[str, Side], chance: random.Random) -> Iterator[dict[str, Process]]:
    """A process for each side, ready to be asked; all are ended afterwards."""
    running: dict[str, Process] = {}
    try:
        for name in chance.sample(list(sides), len(sides)):
            running[name] = Process(sides[name])
        for process in running.values():
            process.ready()
        yield {name: running[name] for name in sides}
    finally:
        for process in running.values():
            process.end()


class Machine:
    """What else a Linux machine did from here on; elsewhere nothing is known of it."""

    def __init__(self) -> None:
        self.before = self._processor()

    @staticmethod
    def _processor() -> tuple[float, float, float]:
        """Seconds, over all processors: passed, in use, and given to other virtual machines."""
        try:
            ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        except (OSError, ValueError):
            return 0.0, 0.0, 0.0
        user, nice, system, idle, waiting, hard, soft, stolen = (tick / os.sysconf("SC_CLK_TCK") for tick in ticks)
        used = user + nice + system + hard + soft
        return used + idle + waiting + stolen, used, stolen

    def said(self, own: float) -> str:
        """Whether it was busy, given the seconds of processor time that were ours."""
        passed, used, stolen = (after - before for after, before in zip(self._processor(), self.before, strict=True))
        if not passed:
            return "machine: not known whether busy"
        others = max(0.0, used - own) / passed
        busy = "busy" if others + stolen / passed > 0.1 else "quiet"
        return (
            f"machine {busy}: others used {others:.0%} of the processors, {stolen / passed:.0%} went to other machines"
        )

    @staticmethod
    def name() -> str:
        """What must be the same for a stored number to mean anything."""
        info = Path("/proc/cpuinfo")
        lines = info.read_text().splitlines() if info.exists() else []
        models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        model = models[0] if models else platform.processor()
        return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


# ---- the command ----------------------------------------------------------------------------------------


def compare(options: argparse.Namespace, chance: random.Random) -> int:
    """Old and new side by side, in pairs of processes, until each benchmark is judged or the looks are over."""
    new = Side(options.benchmark, options.function)
    sides = {"old": Side(options.benchmark, options.function, options.old, options.old_python), "new": new}
    ratios: dict[str, list[float]] = {}
    verdicts: dict[str, Verdict] = {}
    machine, own, began = Machine(), 0.0, time.perf_counter()
    for pair in range(1, PAIRS * LOOKS + 1):
        taken, used = take_turns(sides, options.samples, options.seconds, chance)
        own += used
        for name, by_side in taken.items():
            ratios.setdefault(name, []).append(ratio_of(by_side["old"], by_side["new"]))
        if pair % PAIRS == 0:  # a verdict stands: to look at it again would be one more chance to be wrong
            verdicts |= {
                name: paired(found, options.limit)
                for name, found in ratios.items()
                if name not in verdicts or verdicts[name].status == "not judged"
            }
            if all(verdict.status != "not judged" for verdict in verdicts.values()):
                break
    how = f"{pair} pairs of processes, {time.perf_counter() - began:.0f} s"
    return report(verdicts, options.limit, f"{how}; {machine.said(own)}")


def alone(options: argparse.Namespace, chance: random.Random) -> tuple[dict, float]:
    """The new code by itself: the medians of some processes, the yardstick's beside them; and processor seconds."""
    medians: dict[str, list[float]] = {}
    used = 0.0
    sides = {"new": Side(options.benchmark, options.function)}
    for _ in range(PAIRS + 2):  # two intervals must hold, so each needs more
        with started(sides, chance) as running:
            for name in ("", *running["new"].benchmarks):
                calls = running["new"].ask("calls", name, options.seconds)
                samples = [running["new"].ask("seconds", name, calls) for _ in range(options.samples)]
                medians.setdefault(name, []).append(statistics.median(samples))
            used += running["new"].processor_seconds
    return {"machine": Machine.name(), "yardstick": medians.pop(""), "seconds": medians}, used


def against(options: argparse.Namespace, stored: dict, chance: random.Random) -> int:
    """The new code beside stored numbers; refused where the machine is another, or not as fast as it was."""
    if stored["machine"] != Machine.name():
        print(f"not judged: the baseline is of another machine ({stored['machine']}; this is {Machine.name()})")
        return STATUS["not judged"]
    machine, (now, own) = Machine(), alone(options, chance)
    pace = statistics.median(now["yardstick"]) / statistics.median(stored["yardstick"])
    if not 1 / (1 + options.limit / 2) < pace < 1 + options.limit / 2:
        print(f"not judged: work that never changes takes {pace:.3f} times as long as when the baseline was stored")
        return STATUS["not judged"]
    verdicts = {
        name: unpaired(stored["seconds"][name], seconds, options.limit)
        for name, seconds in now["seconds"].items()
        if name in stored["seconds"]
    }
    return report(verdicts, options.limit, f"against stored numbers, whose drift nobody knows; {machine.said(own)}")


def report(verdicts: Mapping[str, Verdict], limit: float, how: str) -> int:
    """Print a line for each benchmark; returns the exit status."""
    for name, found in verdicts.items():
        print(f"{found.status}: {name} takes {found.ratio:.3f} times as long ({found.low:.3f} to {found.high:.3f})")
        if found.status == "not judged":
            print(f"    1 or {1 + limit:.3f}? The noise hides it: longer samples (--seconds), or a quieter machine")
        elif found.status == "not slower" and found.low > 1:
            print("    slower without doubt, but by less than half the limit")
    print(how)
    if not verdicts:
        raise Failed("old and new have no benchmark in common")
    return max((STATUS[found.status] for found in verdicts.values()), key=lambda status: (status == 1, status))


def main(arguments: list[str]) -> int:
    """Run the gate; returns the exit status."""
    options = parse(arguments)
    if options.serve:
        serve(options.benchmark, options.serve)
        return 0
    chance = random.Random()
    try:
        if options.old:
            return compare(options, chance)
        if options.store:
            Path(options.store).write_text(json.dumps(alone(options, chance)[0], indent=1))
            return 0
        return against(options, json.loads(Path(options.against).read_text()), chance)
    except (Failed, OSError) as error:
        print(f"\ngate: {error}", file=sys.stderr)  # what a side printed last may be half a line
        return 2


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("gate.py", description="Is the new code slower than the old?")
    parser.add_argument(
        "benchmark", help="Python file with a function that returns the call to time, or a dict of calls"
    )
    parser.add_argument("--function", default="benchmark", help="its name (default: %(default)s)")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--old", metavar="FOLDER", help="checkout of the old code, to run beside the current folder's")
    what.add_argument("--store", metavar="FILE", help="time the current folder's code and keep the numbers")
    what.add_argument("--against", metavar="FILE", help="compare with numbers that --store kept on this machine")
    what.add_argument("--serve", metavar="FUNCTION", help=argparse.SUPPRESS)
    parser.add_argument("--old-python", default=sys.executable, help="the old code's interpreter, if it has its own")
    parser.add_argument("--limit", type=lambda text: float(text) / 100, default=0.05, help="per cent (default: 5)")
    parser.add_argument("--samples", type=int, default=15, help="of each side in a pair (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.02, help="that a sample takes (default: %(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
