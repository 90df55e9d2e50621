"""The command line; see `--help`."""

import argparse
import os
import sys
from pathlib import Path

import torch

from . import __doc__ as about
from . import analyze, reads, validate
from .difference import difference, read
from .factories import load
from .report import Report, as_html, as_json, as_text
from .subject import Refused
from .verdict import Verdict


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 1 if a changed module is not right, or something is worse; 2 if something was refused.

    130 is that of Ctrl-C.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments[:1] == ["read"]:
            return reads.main(arguments[1:])
        return compare(arguments[1:]) if arguments[:1] == ["diff"] else look(parsed(arguments))
    except Refused as error:
        print(f"assistant: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("assistant: interrupted before anything was known", file=sys.stderr)
        return 130
    except torch.OutOfMemoryError as error:
        print(f"assistant: out of memory: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2


def compare(arguments: list[str]) -> int:
    """`assistant diff before.json after.json`: a line for each difference."""
    parser = argparse.ArgumentParser("assistant diff", description="Is the second report worse? Then the status is 1.")
    for which in ("before", "after"):
        parser.add_argument(which, type=Path, metavar=f"{which}.json", help="a report written by --json")
    asked = parser.parse_args(arguments)
    found = difference(read(asked.before), read(asked.after))
    print("\n".join(map(str, found)) or "no difference")
    return int(any(one.worse for one in found))


def look(asked: argparse.Namespace) -> int:
    for file in (asked.json, asked.html):
        check_writable(file)
    result = answer(asked)
    print(as_text(result))
    for file, form in ((asked.json, as_json), (asked.html, as_html)):
        if file:
            write(file, form(result))
    if any(limit.endswith("interrupted") for limit in result.limits):
        return 130
    return int(isinstance(result, Verdict) and not result.right)


def check_writable(file: Path | None) -> None:
    """Raise a Refused before the run for a report that could not be written after it."""
    if file is None:
        return
    if file.is_dir():
        raise Refused(f"{file} is a folder, and the report is a file")
    if not file.parent.is_dir():
        raise Refused(f"there is no folder {file.parent} for {file.name}")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise Refused(f"{file} cannot be written")


def write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Refused(f"{file} cannot be written: {error.strerror}") from None


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "assistant", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    factory = "package.module:factory, or path/file.py:factory; it returns a module and its inputs"
    changed = "a changed version: say whether it is right, faster and smaller"
    training = "put the module into training mode, and refuse one whose call has no gradient"
    measure = "try changes and time them (default: on a GPU)"
    budget = "seconds after which nothing more begins; the report then has what is known (default: 300)"
    parser.add_argument("factory", help=factory)
    parser.add_argument("--against", metavar="FACTORY", help=changed)
    parser.add_argument("--train-step", action="store_true", help=training)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as one page")
    parser.add_argument("--measure", action=argparse.BooleanOptionalAction, help=measure)
    parser.add_argument("--budget", type=float, default=300.0, metavar="SECONDS", help=budget)
    return parser.parse_args(arguments)


def answer(asked: argparse.Namespace) -> Report | Verdict:
    first, *others = [load(spec) for spec in (asked.factory, asked.against) if spec]
    for subject in (first, *others) if asked.train_step else ():
        subject.module.train()
    about = {"named": first.named, "progress": progress, "budget": asked.budget}
    result: Report | Verdict
    if others:
        result = validate(first.module, others[0].module, *first.inputs, **about)
    else:
        result = analyze(first.module, *first.inputs, measure=asked.measure, **about)
    if asked.train_step and not has_gradient(result):
        raise Refused(f"{first.name} has no training step: no output has a gradient")
    return result


def has_gradient(result: Report | Verdict) -> bool:
    if isinstance(result, Report):
        return result.facts.backward
    return any(check.name.startswith("gradient") for check in result.checks)


def progress(message: str) -> None:
    print(f"… {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
