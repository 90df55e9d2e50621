"""What backs a kernel's launch table: `python -m tests.benchmarks.sweeps NAME ...` times the alternatives.

A file `tests/benchmarks/sweeps/NAME.py` names the points (`points()`) and, for each, the alternatives: what the
kernel's `_forward_launch` or `_backward_launch` might return there (`alternatives(point)`). Each is checked like any
variant of the kernel's case, then all are timed side by side. The record goes to docs/measurements/sweeps/NAME/.
"""

import argparse
import importlib
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

from tests.benchmarks import alternatives, machine, runner
from tests.benchmarks.functions import SWEEPS, Code
from tests.benchmarks.reviewed import version
from tests.benchmarks.source import ROOT

SCHEMA = 1
OUT = ROOT / "docs" / "measurements" / "sweeps"


def main(arguments: list[str]) -> int:
    """Sweep the named kernels; returns the exit status."""
    options = parse(arguments)
    known = kernels()
    unknown = [name for name in options.kernels if name not in known]
    if unknown or not torch.cuda.is_available():
        problem = (
            f"no sweep for {', '.join(unknown)}: expected {', '.join(known)}" if unknown else "a sweep needs a GPU"
        )
        print(problem, file=sys.stderr)
        return 2
    for name in options.kernels or known:
        record, path = begun(name, torch.device("cuda"), options.commit, options.out, options.go_on)
        sweep(record, path, torch.device("cuda"))
        print(summary(record))
        print(path)
    return 0


def kernels() -> list[str]:
    """The kernels that have a sweep."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


def begun(name: str, device: torch.device, commit: str | None, out: Path, go_on: bool) -> tuple[dict, Path]:
    """A record without points and where to write it; or the newest, if it is to be gone on with and is of this code."""
    file = runner.discover()[f"kernels/{name.replace('_', '-')}"]
    now, described = datetime.now(UTC), machine.describe(device)
    commit, dirty = (commit, False) if commit else runner.commit_of_tree()
    record = {
        "schema": SCHEMA,
        "id": f"{now:%Y-%m-%dT%H-%M-%SZ}-{described['slug']}",
        "kernel": name,
        "date": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "command": f"python -m tests.benchmarks.sweeps {name}",
        "commit": commit,
        "dirty": dirty,
        "machine": described,
        "software": machine.software(),
        "sources": sources_of(name, file),
        "points": [],
    }
    earlier = sorted((out / name).glob("*.json"))
    if go_on and earlier:
        found = json.loads(earlier[-1].read_text(encoding="utf-8"))
        same = ("commit", "dirty", "sources", "software")
        if all(found[part] == record[part] for part in same) and found["machine"]["slug"] == described["slug"]:
            return found, earlier[-1]
    return record, out / name / f"{record['id']}.json"


def sweep(record: dict, path: Path, device: torch.device) -> None:
    """Check, then time, the alternatives at every point that the record lacks; it is written after each."""
    name = record["kernel"]
    plan = importlib.import_module(f"tests.benchmarks.sweeps.{name}")
    kernel = importlib.import_module(f"kernels.{name}")
    case = runner.load(runner.discover()[f"kernels/{name.replace('_', '-')}"])
    for index, point in enumerate(list(plan.points())[len(record["points"]) :], len(record["points"]) + 1):
        say(f"{name}: {index} {runner.label(point)}")
        with machine.turn(device, alone=False):
            question, verdicts = alternatives.checked(case, kernel, point, plan.alternatives(point), device)
        with machine.turn(device, alone=True):
            record["points"].append(alternatives.timed(case, kernel, point, question, verdicts, device))
        runner.write_whole(path, record)


def sources_of(name: str, path: Path) -> dict:
    """What a sweep measures, as a row says it; the plan is among the files."""
    code, case_file, plan = Code.of(ROOT), path.relative_to(ROOT).as_posix(), f"{SWEEPS}{name}.py"
    reached = code.measured(case_file, plan)
    files = {function.partition(":")[0] for function in reached.functions} - {case_file}
    return {"hash": reached.hash, "files": [*sorted(files), case_file], "method": version(code)}


def summary(record: dict) -> str:
    """A line for each alternative."""
    lines = []
    for row in record["points"]:
        size = runner.size(row.get("part", ""), row["shape"])
        lines.append(f"{record['kernel']} {row['direction']} {size} {row['dtype']}")
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
    parser.add_argument("--go-on", action="store_true", help="go on with the newest record where it stopped")
    return parser.parse_args(arguments)


def say(step: str) -> None:
    print(step, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
