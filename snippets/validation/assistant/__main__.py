"""The command line; see `--help`."""

import argparse
import sys
from pathlib import Path

import torch

from . import __doc__ as about
from . import analyze, validate
from .report import Report, as_html, as_json, as_text
from .subject import Refused, load
from .verdict import Verdict


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 1 if a changed module is not right, 2 if something was refused, 130 after Ctrl-C."""
    asked = parsed(arguments)
    try:
        result = answer(asked)
    except Refused as error:
        print(f"assistant: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("assistant: interrupted before anything was known", file=sys.stderr)
        return 130
    except torch.OutOfMemoryError as error:
        print(f"assistant: out of memory: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    print(as_text(result))
    if asked.json:
        asked.json.write_text(as_json(result), encoding="utf-8")
    if asked.html:
        asked.html.write_text(as_html(result), encoding="utf-8")
    if any(limit.endswith("interrupted") for limit in result.limits):
        return 130
    return int(isinstance(result, Verdict) and not result.right)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "assistant", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    factory = "package.module:factory, or path/file.py:factory; it returns a module and its inputs"
    changed = "a changed version: say whether it is right, faster and smaller"
    measure = "try changes and time them (default: on a GPU)"
    budget = "seconds after which nothing more begins; the report then has what is known (default: 300)"
    parser.add_argument("factory", help=factory)
    parser.add_argument("--against", metavar="FACTORY", help=changed)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as one page")
    parser.add_argument("--measure", action=argparse.BooleanOptionalAction, help=measure)
    parser.add_argument("--budget", type=float, default=300.0, metavar="SECONDS", help=budget)
    return parser.parse_args(arguments)


def answer(asked: argparse.Namespace) -> Report | Verdict:
    subject = load(asked.factory)
    about = {"named": subject.named, "progress": progress, "budget": asked.budget}
    if asked.against:
        return validate(subject.module, load(asked.against).module, *subject.inputs, **about)
    return analyze(subject.module, *subject.inputs, measure=asked.measure, **about)


def progress(message: str) -> None:
    print(f"… {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
