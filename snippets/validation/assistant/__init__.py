"""The Compiler Optimization Assistant: what keeps a module from being fast, where, and what to change.

    python -m assistant package.module:factory --html report.html
    python -m assistant model.py:make --against model.py:make_fast

A factory returns a module and the inputs of one call: `return model, x`. As a library: `analyze(module, *inputs)` and
`validate(original, optimized, *inputs)`. The folder stands alone: copy it, torch is all that it needs. In the site's
repository it is `snippets.validation.assistant`.
"""

import time
from collections.abc import Mapping
from typing import Any

from torch import nn

from .findings import merged
from .found import find
from .graphs import capture
from .profiling import profile, slow_kernels
from .report import Report, describe
from .subject import Subject, check, one_line, other_sizes
from .trace import traced
from .trials import try_all
from .verdict import Progress, Verdict, compare_modules, silent


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


def validate(
    original: nn.Module,
    optimized: nn.Module,
    *inputs: Any,
    named: Mapping[str, Any] | None = None,
    rounds: int = 20,
    progress: Progress = silent,
) -> Verdict:
    """Say whether a changed module is the same function, faster and smaller, and with what certainty.

    Outputs and all gradients are held against float64, by the bound of agreement.py; forward,
    backward and a step of both are timed side by side.

    Raises:
        Refused: one of the two raises, is not deterministic, or cannot take these inputs.
    """
    pair = [Subject(module, inputs, dict(named or {})) for module in (original, optimized)]
    for subject, name in zip(pair, ("the original", "the changed module"), strict=True):
        progress(f"running {name} twice")
        check(subject)
    return compare_modules(*pair, rounds=rounds, progress=progress)
