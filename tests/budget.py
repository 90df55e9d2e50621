"""Whether tests, lint and docs keep to the processor seconds of tests/budget.toml: `nox -s budget`, after all three.

Each session leaves what it took in .cache/seconds. `--publish` also writes the record that the README and the
contributor's guide show, to docs/measurements/suite, and the README's lines.
"""

import argparse
import json
import re
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks import machine
from tests.benchmarks.runner import commit_of_tree
from tests.benchmarks.source import ROOT
from tests.benchmarks.whole import write_whole

SCHEMA = 1
SESSIONS = ("tests", "lint", "docs")
ALLOWED = 1.5
EACH = "collection"  # every process of the tests does that anew: the number is for one
FOLDER = "docs/measurements/suite"
BEGIN, END = "<!-- times -->\n", "<!-- /times -->\n"


class Unjudged(Exception):
    """What was run cannot be held against the budget; the message says why."""


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Print the areas; returns the exit status: 1 where one is over its number, 2 where there is nothing to judge."""
    parser = argparse.ArgumentParser("nox -s budget --", description=__doc__)
    parser.add_argument("--publish", action="store_true", help="write the record that pages show")
    options = parser.parse_args(arguments)
    try:
        taken = taken_by_sessions(root)
    except Unjudged as error:
        print(error, file=sys.stderr)
        return 2
    budget = tomllib.loads((root / "tests" / "budget.toml").read_text(encoding="utf-8"))
    over = judged(taken, budget)
    if options.publish:
        record = written(taken, root)
        readme = root / "README.md"
        readme.write_text(with_times(readme.read_text(encoding="utf-8"), record), encoding="utf-8")
    print("\n".join(over) if over else "every area keeps to tests/budget.toml")
    return 1 if over else 0


def taken_by_sessions(root: Path) -> dict[str, Any]:
    """What the three sessions took: areas in processor seconds, commands by the clock.

    Raises:
        Unjudged: a session is missing, failed, or left out what had passed before.
    """
    read: dict[str, Any] = {}
    for name in (*SESSIONS, "areas"):
        file = root / ".cache" / "seconds" / f"{name}.json"
        if not file.exists():
            raise Unjudged(f"expected nox -s {' '.join(SESSIONS)} to have run, found no {file.relative_to(root)}")
        read[name] = json.loads(file.read_text(encoding="utf-8"))
    tests = read["areas"]
    if not tests["passed"]:
        raise Unjudged("expected all tests to have passed")
    if tests["remembered"]:
        raise Unjudged(f"{tests['remembered']} tests were remembered: nox -s tests -- --fresh runs all")
    others = [{"name": name, "tests": None, "seconds": read[name]["processor"]} for name in ("lint", "docs")]
    return {
        "processes": tests["processes"],
        "reference": tests["reference"],
        "areas": [*tests["areas"], *others],
        "files": tests["files"],
        "commands": [{"name": f"nox -s {name}", "seconds": read[name]["seconds"]} for name in SESSIONS],
    }


def judged(taken: dict[str, Any], budget: dict[str, Any]) -> list[str]:
    """Print each area beside its number; returns a line for each that is over it, or has none."""
    slower = max(1.0, taken["reference"] / budget["reference"])  # a faster loop alone has not made the tests faster
    print(f"seconds are divided by {slower:.2f}, how much longer the fixed loop takes than it did for the budget")
    lines = []
    for area in taken["areas"]:
        seconds, number = area["seconds"] / slower, budget["areas"].get(area["name"])
        if number is not None and area["name"] == EACH:
            number *= taken["processes"]
        print(f"{seconds:9.1f} s of {number if number is not None else '?':>6}  {area['name']}")
        if number is None:
            lines.append(f"{area['name']}: expected a number in tests/budget.toml, got none")
        elif seconds > ALLOWED * number:
            lines.append(
                f"{area['name']}: expected at most {ALLOWED * number:.0f} processor seconds, took {seconds:.0f}"
            )
    print(f"{sum(area['seconds'] for area in taken['areas']) / slower:9.1f} s  in all")
    return lines


# ---- the record -----------------------------------------------------------------------------------------------------


def written(taken: dict[str, Any], root: Path) -> dict[str, Any]:
    """The record, in its file."""
    commit, dirty = commit_of_tree()
    now = datetime.now(UTC)
    described = machine.describe(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    record = {
        "schema": SCHEMA,
        "date": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "command": ".ci/run",
        "commit": commit,
        "dirty": dirty,
        "machine": described,
        "software": machine.software(),
        "seconds": round(sum(command["seconds"] for command in taken["commands"]), 1),
        **taken,
    }
    write_whole(root / FOLDER / f"{now:%Y-%m-%dT%H-%M-%SZ}-{described['slug']}.json", record)
    return record


def with_times(readme: str, record: dict[str, Any]) -> str:
    """The README with the times of a record between its two marks; unchanged where it is a record of tests alone."""
    if "commands" not in record:
        return readme
    rows = [f"| `{command['name']}` | {minutes(command['seconds'])} |" for command in record["commands"]]
    where = f"| on {record['machine']['name']}, {record['date'][:10]} | time |"
    table = "\n".join([where, "|---|---|", *rows]) + "\n"
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    changed, count = pattern.subn(lambda _: f"{BEGIN}\n{table}\n{END}", readme)
    if count != 1:
        raise ValueError(f"README.md: expected {BEGIN.strip()} and {END.strip()} once, found them {count} times")
    return changed


def minutes(seconds: float) -> str:
    """95.2 is "1 min 35 s"."""
    whole, rest = divmod(round(seconds), 60)
    return f"{whole} min {rest} s" if whole else f"{rest} s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
