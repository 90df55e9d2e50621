"""Measure: `python -m tests.benchmarks [CASE ...]`. See `--help`."""

import argparse
import contextlib
import difflib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from snippets import environment
from tests.benchmarks.source import ROOT

environment.require()  # before torch is imported

import torch  # noqa: E402

from snippets.validation.timing import MODES  # noqa: E402
from tests.benchmarks.case import Point  # noqa: E402
from tests.benchmarks.runner import (  # noqa: E402
    Record,
    commit_hash,
    discover,
    fresh_points,
    load,
    plan,
    published_command,
    run,
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
    todo = plan(options.cases or files, device, options.modes, fresh, options.variants, options.points)
    if not todo:
        print(f"nothing to measure on this {device.type}: no case has points here, or all were measured with this code")
        return 0
    command = published_command("python -m tests.benchmarks", arguments, own=("--out", "--commit"))
    record = Record(options.out, device, command, options.commit, options.variants)
    bar = Progress()
    try:
        run(todo, device, record, bar.say, bar.over)
    except KeyboardInterrupt:
        bar.close()
        done = f"what was measured is in {record.path}" if record.path.exists() else "nothing was measured yet"
        print(f"interrupted: {done}", file=sys.stderr)
        return 130
    bar.close()
    for failure in record.content["failures"]:
        shape = "×".join(map(str, failure["shape"].values()))
        print(f"not timed: {failure['case']} {failure['variant']} {failure['direction']} {shape}: {failure['reason']}")
    for reason in sorted({row["busy"] for row in record.content["rows"]} - {""}):
        print(f"this machine was busy ({reason}); measure again", file=sys.stderr)
    print(f"{len(record.content['rows'])} rows in {record.path}")
    if record.content["dirty"]:
        print("measured in a tree with uncommitted changes: shown here, but never published", file=sys.stderr)
    return 0


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
        "--skip-fresh", action="store_true", help="go on where a run stopped: leave out points that are up to date"
    )
    return parser.parse_args(arguments)


class Progress:
    """A progress bar where tqdm is installed and somebody looks, else a line for each point."""

    def __init__(self) -> None:
        self.bar: Any = None
        self.tqdm: Any = None
        if sys.stderr.isatty():
            with contextlib.suppress(ImportError):
                self.tqdm = importlib.import_module("tqdm").tqdm

    def over(self, points: list[Point], name: str) -> Iterator[Point]:
        """Iterate over a case's points, showing how many are left."""
        if self.tqdm:
            self.bar = self.tqdm(points, desc=name, unit="point", leave=True, dynamic_ncols=True)
            yield from self.bar
            return
        for index, point in enumerate(points, 1):
            shape = "×".join(map(str, point.shape.values()))
            print(f"{name}: {index}/{len(points)} {point.direction} {shape} {point.dtype}", file=sys.stderr, flush=True)
            yield point

    def say(self, step: str) -> None:
        """Show what is being done now."""
        if self.bar is not None:
            self.bar.set_postfix_str(step)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
