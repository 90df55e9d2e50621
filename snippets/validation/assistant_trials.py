"""Changes that can be made automatically: each is tried on a copy, checked, timed beside the original, or refused.

A change is suggested only where the check passed and it was faster than the original by more than the noise.
"""

import gc
import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch._inductor.config
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from snippets.validation import timing
from snippets.validation.assistant_capture import Captured, cleaned, is_attention
from snippets.validation.assistant_findings import Finding
from snippets.validation.assistant_module import (
    Subject,
    copied,
    fresh_inputs,
    nothing_changed,
    one_line,
    precision_settings,
    products_in_tf32,
    quiet,
    resized,
    seeded,
)
from snippets.validation.assistant_trace import kind_of_mask, tensors_of
from snippets.validation.assistant_validate import (
    Checked,
    Ratio,
    References,
    check_against,
    drops,
    peak,
    results_of,
    step,
    still,
)

Progress = Callable[[str], None]
Change = Callable[[nn.Module], nn.Module]


# --8<-- [start:candidate]
@dataclass(frozen=True)
class Candidate:
    """A change: how it is made to a copy, how the reader makes it, and what it is for.

    Attributes:
        rounding: of the coarser numbers that it multiplies, where it does so. No bound of the module's own dtype holds
            then: the errors of both are told, and the reader decides.
        answers: the kinds of findings that it mends.
        during: the settings under which it runs.
        compiles: it is of no use to a module that is compiled anew at each call.
        runs: how many steps it takes until it runs as it will: a CUDA graph is recorded first, then replayed.
    """

    name: str
    code: str
    page: str
    change: Change
    answers: tuple[str, ...] = ()
    rounding: float = 0.0
    during: Callable[[], AbstractContextManager] = nullcontext
    compiles: bool = False
    runs: int = 1


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


# --8<-- [end:candidate]


class Inside(nn.Module):
    """A module that runs under a mode: what it holds is not changed."""

    def __init__(self, module: nn.Module, mode: Callable[[], AbstractContextManager]):
        super().__init__()
        self._orig_mod, self.mode = module, mode

    def forward(self, *inputs: Any, **named: Any) -> Any:
        with self.mode():
            return self._orig_mod(*inputs, **named)


class CausalFlag(TorchFunctionMode):
    """Attention with a causal mask becomes attention with a flag. In a call, each mask is looked at once."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[tuple, tuple[str, Tensor]] = {}

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is F.scaled_dot_product_attention:
            mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
            if mask is not None and not torch.compiler.is_compiling():
                key = (mask.data_ptr(), tuple(mask.shape))
                if key not in self.known:
                    self.known[key] = kind_of_mask(mask), mask  # held, so that no other gets its address meanwhile
                if self.known[key][0] == "causal":
                    args = args[:3]
                    kwargs = {**kwargs, "attn_mask": None, "is_causal": True}
        return function(*args, **kwargs)


def compiled_with_flag(module: nn.Module) -> nn.Module:
    """Compiled, every mask of the captured graph that is causal, square and alike for all made a flag.

    Which masks are, the first run of the graph tells, as it was captured.
    """
    from torch._inductor.compile_fx import compile_fx

    def backend(graph: fx.GraphModule, inputs: list[Tensor]) -> Callable:
        state: dict[str, Callable] = {}

        def run(*given: Tensor) -> Any:
            if "compiled" not in state:
                causal = causal_nodes(graph, given)
                for node in causal:
                    node.kwargs = {**{k: v for k, v in node.kwargs.items() if k != "attn_mask"}, "is_causal": True}
                    node.args = node.args[:3]
                graph.graph.eliminate_dead_code()
                graph.recompile()
                state["compiled"] = compile_fx(graph, list(given))
            return state["compiled"](*given)

        return run

    return torch.compile(module, backend=backend)  # type: ignore[return-value]


def causal_nodes(graph: fx.GraphModule, inputs: tuple) -> list[fx.Node]:
    """The attentions of a graph whose mask is causal for these inputs."""
    found = []

    class Look(fx.Interpreter):
        def run_node(self, node: fx.Node) -> Any:
            if is_attention(node):
                args, kwargs = self.fetch_args_kwargs_from_env(node)
                mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
                if mask is not None and kind_of_mask(mask) == "causal":
                    found.append(node)
            return super().run_node(node)

    with torch.no_grad():
        Look(graph).run(*inputs)
    return found


class SiteKernels(TorchFunctionMode):
    """Calls of PyTorch that a kernel of this site does, too, are handed to the kernel."""

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        replaced = self.replaced(function, args, kwargs)
        return replaced() if replaced else function(*args, **kwargs)

    def replaced(self, function: Callable, args: tuple, kwargs: dict) -> Callable[[], Tensor] | None:
        from kernels.cross_entropy import cross_entropy
        from kernels.layer_norm import layer_norm
        from kernels.rms_norm import rms_norm

        given = dict(zip(("x", "shape", "weight", "bias", "eps"), args, strict=False)) | kwargs
        if function is F.layer_norm and len(given["shape"] if "shape" in given else given["normalized_shape"]) == 1:
            return lambda: layer_norm(args[0], given.get("weight"), given.get("bias"), given.get("eps", 1e-5))
        if function is F.rms_norm and len(args) >= 2 and len(args[1]) == 1:
            names = dict(zip(("weight", "eps"), args[2:], strict=False)) | kwargs
            return lambda: rms_norm(args[0], names.get("weight"), names.get("eps"))
        if (
            function is F.cross_entropy
            and len(args) >= 2
            and args[0].dim() == 2
            and not set(kwargs) - {"ignore_index", "reduction"}
        ):
            return lambda: cross_entropy(*args[:2], **kwargs)
        return None


def with_site_norms(module: nn.Module) -> nn.Module:
    """Modules whose whole forward is an RMSNorm written out, as libraries have them, run the kernel instead."""
    from kernels.rms_norm import rms_norm

    for part in module.modules():
        eps = getattr(part, "variance_epsilon", None)
        if type(part).__name__.endswith("RMSNorm") and eps is not None and hasattr(part, "weight"):
            part.forward = lambda x, part=part, eps=eps: rms_norm(x, part.weight, eps)  # type: ignore[method-assign]
    return Inside(module, SiteKernels)


def candidates(subject: Subject, findings: list[Finding], captured: Captured) -> Iterator[Candidate]:
    """What is worth trying on this module, given what was found."""
    kinds = {finding.kind for finding in findings}
    on_gpu = subject.device.type == "cuda"
    compiles = (
        "chain",
        "norm",
        "norm-activation",
        "written-out",
        "gated-mlp",
        "rotary",
        "softmax-dropout",
        "host-bound",
    )
    yield Candidate(
        "torch.compile",
        "torch.compile(model)",
        "compiler/what-compile-does.md",
        lambda module: compiled(module),
        compiles,
        compiles=True,
    )
    masks = [one for one in findings if one.kind == "mask" and one.weight == "finding"]
    if any("torch.compile" not in one.title for one in masks):
        yield Candidate(
            "causality as a flag",
            "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
            "patterns/attention.md#one-kernel",
            lambda module: Inside(module, CausalFlag),
            ("mask",),
        )
    if masks:
        yield Candidate(
            "torch.compile, causality as a flag",
            "torch.compile(model), with is_causal=True said at the attention",
            "patterns/attention.md#compiled",
            compiled_with_flag,
            ("mask", *compiles),
            compiles=True,
        )
    if not on_gpu:
        return
    if kinds & {"norm", "norm-activation", "cross-entropy"} and importlib.util.find_spec("kernels"):
        yield Candidate(
            "kernels of this site",
            "kernels/rms_norm.py, layer_norm.py, cross_entropy.py",
            "kernels/rms-norm.md",
            with_site_norms,
            ("norm", "cross-entropy"),
        )
    if any(isinstance(part, nn.Conv2d) for part in subject.module.modules()):
        yield Candidate(
            "channels last",
            "model.to(memory_format=torch.channels_last)",
            "compiler/fusion.md#layout",
            lambda module: module.to(memory_format=torch.channels_last),
            ("copy",),
        )
    dtypes = {parameter.dtype for parameter in subject.module.parameters()}
    if dtypes == {torch.float32} and not products_in_tf32():
        roofline = "validation/roofline.md#two-bounds-and-the-point-where-they-meet"
        yield Candidate(
            "TF32",
            "torch.set_float32_matmul_precision('high')",
            roofline,
            lambda module: module,
            ("precision",),
            2.0**-11,
            tf32,
        )
        yield Candidate(
            "bfloat16 by autocast",
            "with torch.autocast('cuda', torch.bfloat16): …",
            roofline,
            lambda module: Inside(module, lambda: torch.autocast("cuda", torch.bfloat16)),
            ("precision",),
            2.0**-8,
        )
    yield Candidate(  # the last: what its graphs take from the allocator clouds the memory of others
        "torch.compile with CUDA graphs",
        "torch.compile(model, mode='reduce-overhead')",
        "compiler/what-compile-does.md#what-is-slow",
        lambda module: compiled(module, mode="reduce-overhead"),
        (*compiles, "small-kernels"),
        compiles=True,
        runs=4,
    )


def compiled(module: nn.Module, **options: Any) -> nn.Module:
    return torch.compile(module, **options)  # type: ignore[return-value]


class tf32:  # a setting, for a while
    """Products of fp32 matrices on tensor cores, in 11 bits."""

    def __enter__(self) -> None:
        self.before = [(put, get()) for get, put in precision_settings()]
        torch.set_float32_matmul_precision("high")

    def __exit__(self, *error: object) -> None:
        for put, value in self.before:
            put(value)


# --8<-- [start:try]
def try_all(
    subject: Subject, findings: list[Finding], captured: Captured, progress: Progress, patience: float = 300.0
) -> list[Trial]:
    """Try each candidate; those that are right and faster come first, the fastest in front.

    No trial begins after so many seconds of patience. One that has begun is not cut off: a compiler cannot be.
    """
    trials, began, wanted = [], time.perf_counter(), list(candidates(subject, findings, captured))
    progress(f"computing the step in float64, to hold {len(wanted)} changes against it")
    checked_on, references, problem = reference_for(subject)
    for candidate in wanted:
        late = time.perf_counter() - began > patience
        why = problem or (f"not tried: {patience:.0f} s were spent before" if late else "")
        if candidate.compiles and captured.repeats:
            why = "not tried: it would be compiled anew at each call, see the recompilations"
        if references is None or why:
            trials.append(outcome_of(candidate, refused=why))
            continue
        progress(f"trying {candidate.name}")
        trials.append(tried(subject, candidate, checked_on, references))
    return sorted(trials, key=lambda trial: (not trial.suggested, not trial.trade, -middle(trial)))


def middle(trial: Trial) -> float:
    return trial.ratio.middle if trial.ratio else 0.0


def reference_for(subject: Subject) -> tuple[Subject, References | None, str]:
    """What changes are held against: of these inputs, or of one row of them where float64 does not fit."""
    problem = ""
    for smaller in (subject, one_row(subject)):
        try:
            if smaller is not None:
                return smaller, References.of(smaller), ""
        except torch.OutOfMemoryError:
            problem = "not tried: the step does not fit into memory in float64, so nothing could be checked"
        except Exception as error:  # noqa: BLE001  # some operations have no float64
            return subject, None, f"not tried, since the step cannot run in float64: {one_line(error)}"
    return subject, None, problem


def one_row(subject: Subject) -> Subject | None:
    """The call with the first row of the batch only, if the module takes it."""
    batches = [tensor.shape[0] for tensor in tensors_of((subject.inputs, subject.named)) if tensor.dim()]
    return resized(subject, 0, max(set(batches), key=batches.count), 1) if all(batches) and batches else None


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
            checks = check_against(references, lambda: changed_results(changed, checked_on, candidate, seconds))
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
    refused = "" if ratio.word == "faster" else f"no faster: {ratio}"
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
        timing.synchronize(subject.device)
        seconds.append(time.perf_counter() - began)
    return {name: result.float() for name, result in results.items()} if candidate.rounding else results


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
        before, after = subject.fresh(), Subject(module, *fresh_inputs(subject.inputs, subject.named))

        def changed() -> None:
            with candidate.during():
                step(after)

        measured = timing.measure(
            {"before": lambda: step(before), "after": changed}, subject.device, "calls", rounds=15, patience=10.0
        )
        memory = None
        if subject.device.type == "cuda":
            with candidate.during():
                weighed, base = peak(after), peak(before)
            memory = weighed / base if weighed is not None and base else None
    return Ratio.of(measured["before"], measured["after"]), memory


# --8<-- [end:try]
