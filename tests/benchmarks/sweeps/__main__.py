"""What backs a kernel's launch table: `python -m tests.benchmarks.sweeps NAME ...` times the alternatives.

A file `tests/benchmarks/sweeps/NAME.py` names the points (`points()`) and, for each, the alternatives: what the
kernel's `_forward_launch` or `_backward_launch` might return there (`alternatives(point)`). Each is checked like any
variant of the kernel's case, then all are timed side by side. The record goes to docs/measurements/sweeps/NAME/.
"""

import argparse
import importlib
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import torch

from snippets.validation.timing import Call, measure
from tests.benchmarks import machine, method, runner
from tests.benchmarks.case import Case, Point
from tests.benchmarks.source import ROOT
from tests.benchmarks.stand_ins import Options, Question, launching, noting

SCHEMA = 1
OUT = ROOT / "docs" / "measurements" / "sweeps"


def main(arguments: list[str]) -> int:
    """Sweep the named kernels; returns the exit status."""
    options = parse(arguments)
    known = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
    unknown = [name for name in options.kernels if name not in known]
    if unknown or not torch.cuda.is_available():
        problem = (
            f"no sweep for {', '.join(unknown)}: expected {', '.join(known)}" if unknown else "a sweep needs a GPU"
        )
        print(problem, file=sys.stderr)
        return 2
    for name in options.kernels or known:
        record = sweep(name, torch.device("cuda"), options.commit)
        path = options.out / name / f"{record['id']}.json"
        runner.write_whole(path, record)
        print(summary(record))
        print(path)
    return 0


def sweep(name: str, device: torch.device, commit: str | None) -> dict:
    """Check, then time, the alternatives at every point."""
    plan = importlib.import_module(f"tests.benchmarks.sweeps.{name}")
    kernel = importlib.import_module(f"kernels.{name}")
    file = runner.discover()[f"kernels/{name.replace('_', '-')}"]
    case = runner.load(file)
    now, described = datetime.now(UTC), machine.describe(device)
    rows, sound = [], []
    for index, point in enumerate(plan.points(), 1):
        say(f"{name}: {index} {point.direction} {dict(point.shape)} {point.dtype}")
        with machine.turn(device, alone=False):
            sound.append((point, *checked(case, kernel, point, plan.alternatives(point), device)))
    for point, question, alternatives in sound:
        with machine.turn(device, alone=True):
            rows.append(timed(case, kernel, point, question, alternatives, device))
    return {
        "schema": SCHEMA,
        "id": f"{now:%Y-%m-%dT%H-%M-%SZ}-{described['slug']}",
        "kernel": name,
        "date": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "command": f"python -m tests.benchmarks.sweeps {name}",
        "commit": commit or runner.commit_of_tree()[0],
        "machine": described,
        "software": machine.software(),
        "sources": runner.sources_of(case, file),
        "points": rows,
    }


def checked(
    case: Case, kernel: ModuleType, point: Point, alternatives: list[Options], device: torch.device
) -> tuple[Question, list]:
    """What the table was asked, and (options, problem) of each alternative, its own answer first.

    The problem is empty where an alternative is right.
    """
    torch.manual_seed(0)
    workload = case.prepare(point, device)
    reference = workload.reference()
    baseline = method.build(workload.variants["eager"])[1]
    ours = workload.variants["ours"]
    with noting(kernel) as asked:  # what the table itself says here
        call = ours.build()
        call()
        question, own = asked[point.direction]
    verdicts = []
    for options in [own, *(other for other in alternatives if other != own)]:
        problem = ""
        try:
            with launching(kernel, point.direction, options):
                results = method.copies(ours.results(call()))
            method.check(results, baseline, reference, workload)
        except Exception as error:  # noqa: BLE001  too much shared memory, a compiler's limit: a fact worth recording
            problem = method.one_line(error)
        verdicts.append((options, problem))
    del reference, baseline, results
    torch.cuda.empty_cache()
    return question, verdicts


def timed(
    case: Case, kernel: ModuleType, point: Point, question: Question, alternatives: list, device: torch.device
) -> dict:
    """The times of the alternatives that are right, fastest first, and why the others are not."""
    torch.manual_seed(0)
    workload = case.prepare(point, device)
    call = workload.variants["ours"].build()
    sound = [options for options, problem in alternatives if not problem]

    def using(options: Options) -> Call:
        def launch() -> object:
            with launching(kernel, point.direction, options):
                return call()

        return launch

    timings = measure({str(i): using(options) for i, options in enumerate(sound)}, device, "device", rounds=15)
    moved = workload.bytes_read + workload.bytes_written
    tried = [
        {"options": options, "in_the_table": options == alternatives[0][0], "time": asdict(timings[str(i)])}
        for i, options in enumerate(sound)
    ]
    return {
        "shape": dict(point.shape),
        "dtype": point.dtype,
        "direction": point.direction,
        "asked": {"row_length": question[0], "bits": question[1]},
        "bytes": moved,
        "tried": sorted(tried, key=lambda row: row["time"]["p50"]),
        "failed": [{"options": options, "reason": problem} for options, problem in alternatives if problem],
    }


def summary(record: dict) -> str:
    """A line for each alternative."""
    lines = []
    for row in record["points"]:
        shape = "x".join(map(str, row["shape"].values()))
        lines.append(f"{record['kernel']} {row['direction']} {shape} {row['dtype']}")
        for tried in row["tried"]:
            seconds = tried["time"]["p50"]
            mark = "*" if tried["in_the_table"] else " "
            lines.append(
                f"  {mark} {seconds * 1e6:8.1f} us {row['bytes'] / seconds / 1e9:7.0f} GB/s  {tried['options']}"
            )
        lines += [f"    failed: {failed['options']}: {failed['reason'][:200]}" for failed in row["failed"]]
    return "\n".join(lines)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sweeps", description="Back the launch tables.")
    parser.add_argument("kernels", nargs="*", metavar="NAME", help="kernel files without .py; all if none is given")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the records (default: %(default)s)")
    parser.add_argument(
        "--commit", type=runner.commit_hash, help="the commit swept, where the folder is no git checkout"
    )
    return parser.parse_args(arguments)


def say(step: str) -> None:
    print(step, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
