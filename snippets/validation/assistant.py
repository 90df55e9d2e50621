"""The Compiler Optimization Assistant: what keeps a module from being fast, where, and what to change.

    python -m snippets.validation.assistant package.module:factory --html report.html
    python -m snippets.validation.assistant model.py:make --against model.py:make_fast

A factory returns a module and the inputs of one call: `return model, x`. As a library: `analyze(module, *inputs)` and
`validate(original, optimized, *inputs)`.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from snippets.validation.assistant_capture import Captured, capture
from snippets.validation.assistant_findings import FINDERS, Finding, merged
from snippets.validation.assistant_module import (
    Refused,
    Subject,
    check,
    load,
    loss_of,
    nothing_changed,
    one_line,
    other_sizes,
    quiet,
    refusing,
)
from snippets.validation.assistant_patterns import PATTERNS, without_explained
from snippets.validation.assistant_profile import profile, slow_kernels
from snippets.validation.assistant_report import Report, as_html, as_json, as_text, describe
from snippets.validation.assistant_trace import Trace, record
from snippets.validation.assistant_trials import try_all
from snippets.validation.assistant_validate import Verdict, compare_modules

Progress = Callable[[str], None]


def silent(message: str) -> None:
    """No progress."""


def analyze(
    module: nn.Module,
    *inputs: Any,
    named: Mapping[str, Any] | None = None,
    measure: bool | None = None,
    patience: float = 300.0,
    progress: Progress = silent,
) -> Report:
    """Say what keeps a module from being fast for these inputs, line by line.

    The module runs in the mode that it is in, forward and, where an output has a gradient, backward. Only copies run:
    the module, its hooks, the inputs and torch's settings stay as they are.

    Args:
        module: any module that lets itself be copied. Compiled ones are looked at as they were before.
        inputs: of one call, on the module's device.
        named: keyword inputs.
        measure: try the changes that can be made automatically and time them; by default where there is a GPU.
        patience: seconds after which no further change is tried.
        progress: called with a line of text before each step.

    Raises:
        Refused: the inputs are on another device, the module raises, runs out of memory or is not deterministic.
    """
    subject = Subject(module, inputs, dict(named or {}))
    progress("running it twice")
    check(subject)
    started = time.perf_counter()
    progress("recording the calls, the operations and the memory of one step")
    trace = traced(subject)
    progress("capturing its graphs, for these and for other sizes")
    captured = capture(subject, *other_sizes(subject))
    findings = find(trace, captured)
    on_gpu = subject.device.type == "cuda"
    profiled, problem = None, ""
    if on_gpu:
        progress("profiling its kernels")
        try:
            profiled = profile(subject, trace)
            findings = merged([*findings, *slow_kernels(profiled)])
        except Exception as error:  # noqa: BLE001  # all that was found before stands without it
            problem = f"{type(error).__name__}: {one_line(error)}"
    trials = []
    if on_gpu if measure is None else measure:
        trials = try_all(subject, findings, captured, progress, patience)
    seconds = time.perf_counter() - started
    return Report(describe(subject, trace, captured), findings, trials, profiled, seconds, problem)


def traced(subject: Subject) -> Trace:
    """The record of one step."""
    with nothing_changed(), quiet(), refusing(subject.name):
        twin = subject.fresh()
        return record(twin.module, twin.inputs, twin.named, loss_of)


# --8<-- [start:find]
def find(trace: Trace, captured: Captured) -> list[Finding]:
    """Every finding, the largest gain first, then the notes."""
    found = [finding for finder in (*FINDERS, *PATTERNS) for finding in finder(trace, captured)]
    return merged(without_explained(found))


# --8<-- [end:find]


def validate(
    original: nn.Module,
    optimized: nn.Module,
    *inputs: Any,
    named: Mapping[str, Any] | None = None,
    rounds: int = 20,
    progress: Progress = silent,
) -> Verdict:
    """Say whether a changed module is the same function, faster and smaller, and with what certainty.

    Outputs and all gradients are held against float64, by the bound of `snippets.validation.equivalence`; forward,
    backward and a step of both are timed side by side.

    Raises:
        Refused: one of the two raises, is not deterministic, or cannot take these inputs.
    """
    pair = [Subject(module, inputs, dict(named or {})) for module in (original, optimized)]
    for subject, name in zip(pair, ("the original", "the changed module"), strict=True):
        progress(f"running {name} twice")
        check(subject)
    return compare_modules(*pair, rounds=rounds, progress=progress)


def main(arguments: list[str] | None = None) -> int:
    """The command line; see `--help`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "factory", help="package.module:factory, or path/file.py:factory; it returns a module and its inputs"
    )
    parser.add_argument(
        "--against", metavar="FACTORY", help="a changed version: say whether it is right, faster and smaller"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as one page")
    parser.add_argument(
        "--measure", action=argparse.BooleanOptionalAction, help="try changes and time them (default: on a GPU)"
    )
    parser.add_argument("--patience", type=float, default=300.0, help="seconds after which nothing more is tried")
    asked = parser.parse_args(arguments)

    def progress(message: str) -> None:
        print(f"… {message}", file=sys.stderr, flush=True)

    try:
        subject = load(asked.factory)
        result: Report | Verdict
        if asked.against:
            changed = load(asked.against)
            result = validate(subject.module, changed.module, *subject.inputs, named=subject.named, progress=progress)
        else:
            result = analyze(
                subject.module,
                *subject.inputs,
                named=subject.named,
                measure=asked.measure,
                patience=asked.patience,
                progress=progress,
            )
    except Refused as error:
        print(f"assistant: {error}", file=sys.stderr)
        return 2
    except torch.OutOfMemoryError as error:
        print(f"assistant: out of memory: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    print(as_text(result))
    if asked.json:
        asked.json.write_text(as_json(result), encoding="utf-8")
    if asked.html:
        asked.html.write_text(as_html(result), encoding="utf-8")
    return int(isinstance(result, Verdict) and not result.right)


if __name__ == "__main__":
    sys.exit(main())
