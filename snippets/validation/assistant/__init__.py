"""The Compiler Optimization Assistant: what keeps a module from being fast, where, and what to change.

    python -m assistant package.module:factory --html report.html
    python -m assistant model.py:make --against model.py:make_fast
    python -m assistant diff before.json after.json
    python -m assistant read trace.json

A factory returns a module and the inputs of one call: `return model, x`. A dictionary at the end holds keywords:
`return model, batch` calls `model(**batch)`, and `return model, (batch,)` calls `model(batch)`. A function in place of
the inputs is called for them. As a library: `analyze(module, *inputs)` and `validate(original, optimized, *inputs)`.
The folder stands alone: copy it, torch is all that it needs, or install it, and the command is `assistant`. In the
site's repository it is `snippets.validation.assistant`.
"""

from collections.abc import Mapping
from typing import Any

from torch import nn

from .findings import merged, ranked
from .found import find
from .graphs import Captured, capture
from .profiling import profile, slow_kernels
from .report import Report, describe
from .stages import Stages
from .subject import Refused, Subject, check, check_same, other_sizes, outputs, same
from .surroundings import restored
from .trace import Trace, traced
from .trials import doubt_of, try_all, try_rewrites, with_trials
from .verdict import Progress, Verdict, compare_modules, silent, time_of_step


def analyze(
    module: nn.Module,
    *inputs: Any,
    named: Mapping[str, Any] | None = None,
    measure: bool | None = None,
    budget: float = 300.0,
    progress: Progress = silent,
) -> Report:
    """Say what keeps a module from being fast for these inputs, line by line.

    The module runs in the mode that it is in, forward and, where an output has a gradient, backward. Only copies run:
    the module, its hooks, what its code refers to, the inputs and torch's settings stay as they are.

    Args:
        module: any module that lets itself be copied. Compiled ones are looked at as they were before.
        inputs: of one call, on the module's device.
        named: keyword inputs.
        measure: try the changes that can be made automatically and time them; by default where there is a GPU.
        budget: seconds after which nothing more begins. The report then has what is known.
        progress: called with a line of text before each step.

    Raises:
        Refused: the inputs are on another device, the module raises, runs out of memory or is not deterministic.
    """
    subject, stages = Subject(module, inputs, dict(named or {})), Stages(budget, progress)
    check(subject)
    on_gpu = subject.device.type == "cuda"
    with restored([subject]) as problems:
        doing = "recording the calls, the operations and the memory of one step"
        trace = stages.run("record", doing, lambda: traced(subject), None, first=True)
        if trace is None:
            raise Refused(f"{subject.name}: interrupted before anything was known")
        doing = "capturing its graphs, for these and for other sizes"
        captured = stages.run("graphs", doing, lambda: captured_twice_alike(subject, trace), Captured())
        runs, findings, profiled = subject.runs.count, find(trace, captured), None
        if on_gpu:
            profiled = stages.run("profile", "profiling its kernels", lambda: profile(subject, trace), None)
            findings = merged([*findings, *(slow_kernels(profiled) if profiled else [])])
        doubt, step, trials = doubt_of(trace), None, []
        if on_gpu if measure is None else measure:
            findings = try_rewrites(subject, findings, stages)
            step = stages.run("time of a step", "timing a step", lambda: time_of_step(subject), None)
            trials = try_all(subject, findings, captured, stages)
        findings = ranked(with_trials(one, trials, doubt) for one in findings)
    limits = (*trace.skipped, *stages.skipped, *problems)
    return Report(describe(subject, trace, captured, runs), findings, trials, profiled, stages.seconds, limits, step)


def captured_twice_alike(subject: Subject, trace: Trace) -> Captured:
    """The graphs, after a look at whether the captured module gives what the recorded one gave."""
    captured = capture(subject, other_sizes(subject))
    if captured.error or not same(trace.outputs, captured.outputs):
        check_same(subject, trace.outputs, outputs(subject))
    trace.outputs, captured.outputs = [], []
    return captured


def validate(
    original: nn.Module,
    optimized: nn.Module,
    *inputs: Any,
    named: Mapping[str, Any] | None = None,
    rounds: int = 20,
    budget: float = 300.0,
    progress: Progress = silent,
) -> Verdict:
    """Say whether a changed module is the same function, faster and smaller, and with what certainty.

    All that a call leaves behind is held against float64, by the bound of float64.py, with dropout on and the same
    seed; forward, backward and a step of both are timed side by side.

    Args:
        budget: seconds after which nothing more begins. The verdict then has what is known.

    Raises:
        Refused: one of the two raises, is not deterministic, cannot take these inputs, or gives nothing to compare.
    """
    pair = [Subject(module, inputs, dict(named or {})) for module in (original, optimized)]
    stages = Stages(budget, progress)
    for subject in pair:
        check(subject)
    with restored(pair) as problems:
        verdict = compare_modules(*pair, rounds=rounds, stages=stages)
    verdict.limits += problems
    return verdict
