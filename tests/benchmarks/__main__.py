"""Measure: `python -m tests.benchmarks [CASE ...]`. See `--help`."""

import argparse
import contextlib
import difflib
import importlib
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snippets import environment
from tests.benchmarks.source import ROOT

environment.require()  # before torch is imported

import torch  # noqa: E402

from snippets.validation.timing import MODES  # noqa: E402
from tests.benchmarks import crew  # noqa: E402
from tests.benchmarks.runner import (  # noqa: E402
    Outcomes,
    Points,
    Record,
    commit_hash,
    discover,
    fresh_points,
    label,
    load,
    one_by_one,
    plan,
    published_command,
    run,
    size,
)

LOCAL = ROOT / "docs" / "measurements" / "local"


def main(arguments: list[str]) -> int:
    """Run the cases that were asked for; returns the exit status."""
    options = parse(arguments)
    files = discover()
    if options.list:
        for name, path in files.items():
            print(f"{name:32} {load(path).question}")
        return 0
    unknown = [name for name in options.cases if name not in files]
    for name in unknown:
        close = difflib.get_close_matches(name, files) or files
        print(f"no such case: {name}; expected one of: {', '.join(close)}", file=sys.stderr)
    if unknown:
        return 2
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        print("--device cuda: this PyTorch sees no GPU; leave the option out to measure on the CPU", file=sys.stderr)
        return 2
    if problem := environment.compiler_problem():
        print(f"{problem}; variants that need it will not be timed", file=sys.stderr)
    fresh = fresh_points(options.out, device, options.variants) if options.skip_fresh else frozenset()
    asked = (options.cases or files, device, options.modes)
    chosen = {"variants": options.variants, "numbers": options.points, "unshown": options.all}
    every, todo = plan(*asked, **chosen), plan(*asked, fresh, **chosen)
    missing = sum(map(len, todo.values()))
    if options.first:
        todo = {name: points for name, points in todo.items() if len(points) == len(every[name])}
    if not todo and missing:
        print(rest(every, missing))
        return 0
    if not todo:
        print(f"nothing to measure on this {device.type}: no case has points here, or all were measured with this code")
        return 0
    command = published_command("python -m tests.benchmarks", arguments, own=("--out", "--commit"))
    record = Record(options.out, device, command, options.commit, options.variants)
    asked_for = sum(map(len, todo.values()))
    bar = Progress(asked_for)
    number = min(crew.size(device) if options.workers is None else options.workers, asked_for)

    def measuring() -> Outcomes:
        if number > 1:
            return crew.side_by_side(todo, device, record, number, options.seconds)
        return one_by_one(todo, device, record, bar.say, options.seconds)

    try:
        missing -= run(device, record, measuring, bar.over)
    except KeyboardInterrupt:
        bar.close()
        done = f"what was measured is in {record.path}" if record.path.exists() else "nothing was measured yet"
        print(f"interrupted: {done}", file=sys.stderr)
        return 130
    bar.close()
    say(record)
    if missing:
        print(rest(every, missing))
    if record.content["dirty"]:
        print("measured in a tree with uncommitted changes: shown here, but never published", file=sys.stderr)
    return 0


def say(record: Record) -> None:
    """What was measured, and what was not."""
    for failure in record.content["failures"]:
        at = size(failure["part"], failure["shape"])
        print(f"not timed: {failure['case']} {failure['variant']} {failure['direction']} {at}: {failure['reason']}")
    for reason in sorted({row["busy"] for row in record.content["rows"]} - {""}):
        print(f"this machine was busy ({reason}); measure again", file=sys.stderr)
    for package, variants in absent(record.content["absent"]).items():
        print(f"{package} is not installed here: older rows of {variants} stay as they are")
    print(took(record.content))
    print(f"{len(record.content['rows'])} rows in {record.path}")


def rest(every: Points, missing: int) -> str:
    """How much was measured here, and how to go on."""
    points = sum(map(len, every.values()))
    return (
        f"{points - missing} of {points} points are from this machine; `nox -s bench -- --skip-fresh` measures the rest"
    )


def absent(packages: Mapping[str, str]) -> dict[str, str]:
    """By package that is missing, the variants that need it."""
    found: dict[str, list[str]] = {}
    for variant, package in sorted(packages.items()):
        found.setdefault(package, []).append(variant)
    return {package: ", ".join(variants) for package, variants in found.items()}


def took(content: Mapping) -> str:
    """A table of the seconds that each case took, the longest first: in all, and alone on the machine."""
    cases: dict[str, list[float]] = {}
    for at, seconds in content["seconds"].items():
        for index, value in enumerate((1, seconds, content["alone"][at])):
            cases.setdefault(at.partition(" ")[0], [0, 0.0, 0.0])[index] += value
    lines = [f"{'case':32} {'points':>6} {'building':>10} {'alone':>10}"]
    for name, (points, seconds, alone) in sorted(cases.items(), key=lambda item: -item[1][1]):
        lines.append(f"{name:32} {points:6} {seconds - alone:8.1f} s {alone:8.1f} s")
    return "\n".join(lines)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Measure benchmark cases.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names as --list shows them; all if none is given")
    parser.add_argument("--list", action="store_true", help="show the cases and what each asks, and stop")
    parser.add_argument("--out", type=Path, default=LOCAL, help="folder for the record (default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: the GPU where there is one")
    parser.add_argument("--commit", type=commit_hash, help="the commit measured, where the folder is no git checkout")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=(), help="time in these modes only, e.g. calls")
    parser.add_argument(
        "--points", nargs="+", type=int, default=(), metavar="N", help="these points of each case only, from 1"
    )
    parser.add_argument(
        "--variants",
        nargs="+",
        default=(),
        help="build and time only these and the baseline: to time again without the slow to build",
    )
    parser.add_argument(
        "--seconds", type=float, default=math.inf, metavar="N",
        help="end after so many: the first point of each case comes first, and what is missing is said",
    )  # fmt: skip
    parser.add_argument("--first", action="store_true", help="measure nothing more of a case that has some points")
    parser.add_argument("--all", action="store_true", help="also the points that no page shows")
    parser.add_argument(
        "--workers", type=int, metavar="N",
        help="processes that build side by side; 0: measure one point after the other (default: what the GPU, the "
        "cores and the memory allow; on a CPU 0)",
    )  # fmt: skip
    parser.add_argument(
        "--skip-fresh", action="store_true", help="go on where a run stopped: leave out points that are up to date"
    )
    return parser.parse_args(arguments)


class Progress:
    """A progress bar where tqdm is installed and somebody looks, else a line for each point."""

    def __init__(self, points: int) -> None:
        self.points = points
        self.bar: Any = None
        if sys.stderr.isatty():
            with contextlib.suppress(ImportError):
                self.bar = importlib.import_module("tqdm").tqdm(total=points, unit="point", dynamic_ncols=True)

    def over(self, outcomes: Outcomes) -> Outcomes:
        """Hand on what was measured, showing how much is left."""
        began = time.monotonic()
        for done, (name, point, found) in enumerate(outcomes, 1):
            yield name, point, found
            if self.bar is not None:
                self.bar.set_description(name)
                self.bar.update()
                continue
            left = (time.monotonic() - began) / done * (self.points - done)
            what = f"{name} {label(point)}: {found.seconds:.1f} s, alone {found.alone:.1f} s"
            spent = {"waited for memory": found.waited} | {k: s for k, s in found.spent.items() if k != "alone"}
            what += f" ({', '.join(f'{k} {s:.1f} s' for k, s in spent.items() if s >= 0.05)})"
            print(f"{done}/{self.points} {what}; about {left:.0f} s left", file=sys.stderr, flush=True)

    def say(self, step: str) -> None:
        """Show what is being done now."""
        if self.bar is not None:
            self.bar.set_postfix_str(step)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
