"""Each change is tried on a copy, checked, timed beside the original, or refused."""

import gc
import re
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from . import clock
from .calls import tensors_of
from .candidates import Candidate, candidates
from .findings import Finding
from .float64 import Checked, References, check_against, drops, still
from .graphs import Captured, cleaned
from .results import results_of
from .rewrites import Rewritten, Unfit
from .settings import nothing_changed, quiet, seeded
from .stages import Stages
from .subject import Refused, Subject, copied, forgetting, fresh_inputs, one_line, outputs, with_size
from .trace import Trace
from .verdict import Ratio, peak, step, unknown_to


# --8<-- [start:trial]
@dataclass(frozen=True)
class Trial:
    """What came of a change: its gain, or why it is not suggested."""

    name: str
    code: str
    page: str
    ratio: Ratio | None = None
    cold: float = 0.0  # seconds of the first step
    memory: float | None = None  # share of the original's peak
    error: float = 0.0  # the largest, in units of the bound
    errors: tuple[float, float] | None = None  # of a trade: the worst before and after, see `Checked.relative`
    answers: tuple[str, ...] = ()
    refused: str = ""

    @property
    def suggested(self) -> bool:
        """Right by the bound, and faster."""
        return not self.refused and self.errors is None

    @property
    def trade(self) -> bool:
        """Faster, and less precise: not for the tool to decide."""
        return not self.refused and self.errors is not None


# --8<-- [end:trial]


# --8<-- [start:try]
def try_all(subject: Subject, findings: list[Finding], captured: Captured, stages: Stages) -> list[Trial]:
    """Try each candidate; those that are right and faster come first, the fastest in front.

    No trial begins when the budget is spent. One that has begun is not cut off: a compiler cannot be.
    """
    trials, wanted = [], list(candidates(subject, findings))
    doing = f"computing the step in float64, to hold {len(wanted)} changes against it"
    nothing = subject, None, "not tried: there is nothing to hold it against"
    checked_on, references, problem = stages.run("float64", doing, lambda: reference_for(subject), nothing)
    for candidate in wanted:
        why = f"not tried: {stages.why_not}" if stages.why_not else problem
        if candidate.compiles and captured.repeats:
            why = "not tried: it would be compiled anew at each call, see the recompilations"
        trial = outcome_of(candidate, refused=why or "interrupted")
        if references is not None and not why:
            step = partial(tried, subject, candidate, checked_on, references)
            trial = stages.run(candidate.name, f"trying {candidate.name}", step, trial)
        trials.append(trial)
    return sorted(trials, key=lambda trial: (not trial.suggested, not trial.trade, -middle(trial)))


def middle(trial: Trial) -> float:
    return trial.ratio.middle if trial.ratio else 0.0


def reference_for(subject: Subject) -> tuple[Subject, References | None, str]:
    """What changes are held against: of these inputs, or of one row of them where float64 does not fit."""
    problem = ""
    for smaller in (subject, one_row(subject)):
        try:
            if smaller is not None:
                return smaller, References.of(smaller, dropout=False), ""
        except torch.OutOfMemoryError:
            problem = "not tried: the step does not fit into memory in float64, so nothing could be checked"
        except Exception as error:  # noqa: BLE001  # some operations have no float64
            return subject, None, f"not tried, since the step cannot run in float64: {one_line(error)}"
    return subject, None, problem


def one_row(subject: Subject) -> Subject | None:
    """The call with the first row of the batch only, if the module takes it."""
    batches = [tensor.shape[0] for tensor in tensors_of((subject.inputs, subject.named)) if tensor.dim()]
    if not batches or not all(batches):
        return None
    smaller = with_size(subject, 0, max(set(batches), key=batches.count), 1)
    try:
        outputs(smaller)
    except Refused:
        return None
    return smaller


def outcome_of(candidate: Candidate, **what: Any) -> Trial:
    return Trial(candidate.name, candidate.code, candidate.page, answers=candidate.answers, **what)


def tried(subject: Subject, candidate: Candidate, checked_on: Subject, references: References) -> Trial:
    """Make one change to a copy, check it, time it beside the original."""

    def outcome(**what: Any) -> Trial:
        return outcome_of(candidate, **what)

    try:
        with cleaned(), torch._inductor.config.patch(fallback_random=True):
            seconds: list[float] = []
            changed = candidate.change(still(copied(subject.module)))
            run = partial(changed_results, changed, checked_on, candidate, seconds)
            checks = check_against(references, run, unknown_to(changed, subject.module))
            if problem := wrong(checks, candidate.rounding):
                return outcome(refused=f"the check fails: {problem}")
            if drops(subject.module) or checked_on is not subject:  # else what was checked is what is timed
                changed = candidate.change(copied(subject.module))
            ratio, memory = timed_trial(subject, changed, candidate)
    except torch.OutOfMemoryError:
        return outcome(refused="out of memory")
    except Exception as error:  # noqa: BLE001  # compilers and kernels raise anything; that is an answer here
        return outcome(refused=f"{type(error).__name__}: {one_line(error)}")
    finally:
        if subject.device.type == "cuda":  # compiled code and its graphs lie in cycles
            gc.collect()
            torch.cuda.empty_cache()
    refused = "" if ratio.word == "faster" else f"{no_gain(ratio)}: {ratio}"
    return outcome(
        ratio=ratio,
        cold=seconds[0],
        memory=memory,
        error=max((check.share for check in checks), default=0.0),
        errors=worst(checks) if candidate.rounding else None,
        refused=refused,
    )


def changed_results(
    changed: nn.Module, subject: Subject, candidate: Candidate, seconds: list[float]
) -> dict[str, Tensor]:
    """Outputs and gradients of the changed module, in the dtypes of the original, and what the first step took."""
    results: dict[str, Tensor] = {}
    for _ in range(candidate.runs):
        results.clear()  # a CUDA graph writes over what it gave before
        if candidate.runs > 1:
            torch.compiler.cudagraph_mark_step_begin()
        seeded()
        inputs, began = fresh_inputs(subject.inputs, subject.named), time.perf_counter()
        with candidate.during():
            results = results_of(changed, *inputs)
        clock.synchronize(subject.device)
        seconds.append(time.perf_counter() - began)
    return {name: as_float(result) for name, result in results.items()} if candidate.rounding else results


def as_float(result: Tensor) -> Tensor:
    return result.float() if result.is_floating_point() else result


def wrong(checks: list[Checked], rounding: float) -> str:
    """Why a change is refused; empty if it is not.

    Coarser numbers miss the bound of finer ones. What is refused there is nonsense: an error beyond the root of the
    rounding, with which nothing of the result would be left to trust.
    """
    if not rounding:
        return next((check.problem for check in checks if not check.holds), "")
    far = max(checks, key=lambda check: check.relative[1], default=None)
    if far is None or far.relative[1] <= rounding**0.5:
        return ""
    return f"{far.name} is {far.relative[1]:.1e} from float64 by RMS, expected at most {rounding**0.5:.1e}"


def worst(checks: list[Checked]) -> tuple[float, float]:
    """The largest relative error before and after."""
    before, after = zip(*(check.relative for check in checks), strict=True)
    return max(before), max(after)


def timed_trial(subject: Subject, module: nn.Module, candidate: Candidate) -> tuple[Ratio, float | None]:
    """How much faster a step is, and with what share of the memory."""
    with nothing_changed(), quiet():
        before = subject.again()
        after = Subject(module, *fresh_inputs(subject.inputs, subject.named), before=forgetting(module))

        def changed() -> None:
            with candidate.during():
                step(after)

        measured = clock.measure(
            {"before": lambda: step(before), "after": changed}, subject.device, rounds=15, patience=10.0
        )
        memory = None
        if subject.device.type == "cuda":
            with candidate.during():
                weighed, base = peak(after), peak(before)
            memory = weighed / base if weighed is not None and base else None
    return Ratio.of(measured["before"], measured["after"]), memory


# --8<-- [end:try]


def try_rewrites(subject: Subject, findings: list[Finding], stages: Stages) -> list[Finding]:
    """The findings, with what came of their changes where these can be made to a copy."""
    wanted = [one for one in findings if one.rewrites and one.weight == "finding"]
    if not wanted:
        return findings
    known: dict[int, Finding | None] = {}
    doing = f"trying {len(wanted)} changes on copies"
    nothing = subject, None, ""
    checked_on, references, _ = stages.run("trials of changes", doing, lambda: reference_for(subject), nothing)
    for finding in wanted if references is not None else ():
        if stages.why_not:
            break
        step = partial(rewritten, subject, finding, checked_on, references)
        known[id(finding)] = stages.run("trial of a change", f"trying {finding.title}", step, None)
    return [known.get(id(one)) or one for one in findings]


def rewritten(subject: Subject, finding: Finding, checked_on: Subject, references: References) -> Finding | None:
    """A finding, with what came of its change; None where the change cannot be made to this module."""
    try:
        changed = Rewritten(still(copied(subject.module)), finding.rewrites)
        again = Candidate("", "", "", lambda module: module, runs=2)  # what is made once is there at the second run
        seconds: list[float] = []
        checks = check_against(references, partial(changed_results, changed, checked_on, again, seconds))
        if wrong(checks, 0.0):
            return replace(finding, tried="gives other results", helps=False)
        pair = [Rewritten(copied(subject.module), made) for made in ((), finding.rewrites)]
        ratio = beside(subject, pair)
    except Unfit:
        return None
    except Exception as error:  # noqa: BLE001  # what is left out may be what keeps the module from raising
        return replace(finding, tried=f"raises {type(error).__name__}: {one_line(error)}", helps=False)
    if ratio.word == "faster":
        return replace(finding, tried=f"a step is {ratio} faster", helps=True)
    return replace(finding, tried=f"{no_gain(ratio)}: {ratio}", helps=False if ratio.decides else None)


def no_gain(ratio: Ratio) -> str:
    return "no faster" if ratio.decides else "not decided"


def beside(subject: Subject, pair: list[nn.Module]) -> Ratio:
    """How much faster a step of the second is, timed in turns."""
    with nothing_changed(), quiet():
        twins = [Subject(one, *fresh_inputs(subject.inputs, subject.named), before=forgetting(one)) for one in pair]
        calls = {str(number): partial(step, twin) for number, twin in enumerate(twins)}
        measured = clock.measure(calls, subject.device, rounds=15, patience=2.0)
    return Ratio.of(measured["0"], measured["1"])


def with_trials(finding: Finding, trials: list[Trial], doubt: str) -> Finding:
    """What is known of a change that only trials of the whole module try: of torch.compile, a kernel, a flag.

    Args:
        doubt: why torch.compile may be slower here than eager code; then it is no advice unless it was tried.
    """
    if finding.helps is not None or finding.weight != "finding":
        return finding
    by_compiler = re.search(r"torch\.compile\b", finding.change)  # and not torch.compiler.disable
    about = [one for one in trials if finding.kind in one.answers and answers(finding, one)]
    about = [one for one in about if not one.refused.startswith(("not tried", "interrupted"))]
    if not about:
        return replace(finding, tried=f"not tried, since {doubt}", helps=False) if by_compiler and doubt else finding
    good = max((one for one in about if not one.refused), key=middle, default=None)
    if good is None:
        return replace(finding, tried=f"{about[0].name} refused, {about[0].refused}", helps=False)
    return replace(finding, tried=f"{good.name}: a step is {good.ratio} faster", helps=True)


def answers(finding: Finding, trial: Trial) -> bool:
    """Whether a trial tried what a finding says."""
    named = {"torch.compile": "torch.compile", "kernels of this site": "kernels/", "causality": "is_causal"}
    if finding.kind == "precision":
        return trial.name in ("TF32", "bfloat16 by autocast")
    return any(trial.name.startswith(name) and said in finding.change for name, said in named.items())


def doubt_of(trace: Trace) -> str:
    """Why torch.compile may make this module slower; empty where nothing is known against it."""
    if any(op.runs and op.dtype is not None and op.dtype.is_complex for call in trace.eager for op in call.forward):
        return "Inductor generates no code for complex numbers"
    if trace.backward and any(call.name in ("cumprod", "logcumsumexp") for call in trace.eager):
        return "the backward of cumprod is slower when it is compiled"
    return ""
