"""Is a changed module right, faster and smaller? Both are held against float64, then timed side by side."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from snippets.validation import timing
from snippets.validation.assistant_capture import capture
from snippets.validation.assistant_module import (
    Refused,
    Subject,
    copied,
    fresh_inputs,
    nothing_changed,
    one_line,
    original,
    quiet,
    refusing,
    seeded,
)
from snippets.validation.assistant_trace import leaves_of, record_memory, tensors_of
from snippets.validation.equivalence import compare, distance, largest, rms
from snippets.validation.timing import Timing

Progress = Callable[[str], None]
NARROW = (torch.float32, torch.float16, torch.bfloat16, torch.half)


class Widened(TorchFunctionMode):
    """Runs a module in float64 even where it says `.float()` or names a narrower dtype itself."""

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if getattr(function, "__name__", "") in ("float", "half", "bfloat16") and args and isinstance(args[0], Tensor):
            function = Tensor.double
        wide = tree_map(
            lambda leaf: torch.float64 if isinstance(leaf, torch.dtype) and leaf in NARROW else leaf,
            (args, kwargs or {}),
        )
        return function(*wide[0], **wide[1])


@dataclass
class Results:
    """What one step gives: outputs, and the gradients of parameters and of inputs."""

    values: dict[str, Tensor]
    exact: bool = True  # whether dropout was off, and all numbers come from the inputs


def results_of(module: nn.Module, inputs: tuple, named: dict, wide: bool = False) -> dict[str, Tensor]:
    """Outputs by number, gradients by name. The loss is a sum with weights that every version shares."""
    given = list(tensors_of((inputs, named)))
    with Widened() if wide else NoMode():
        outputs = [one for one in tensors_of(leaves_of(module(*inputs, **named))) if one.is_floating_point()]
    parameters = {name.replace("_orig_mod.", ""): one for name, one in module.named_parameters() if one.requires_grad}
    parameters |= {f"input {number}": one for number, one in enumerate(given) if one.requires_grad}
    results = {f"output {number}": one.detach() for number, one in enumerate(outputs)}
    differentiable = [one for one in outputs if one.requires_grad]
    if differentiable and parameters:
        weights = [weight_for(one, number) for number, one in enumerate(differentiable)]
        gradients = torch.autograd.grad(differentiable, list(parameters.values()), weights, allow_unused=True)
        pairs = zip(parameters.items(), gradients, strict=True)  # no gradient is a gradient of zero
        results |= {f"gradient of {name}": torch.zeros_like(of) if one is None else one for (name, of), one in pairs}
    return results


class NoMode:
    """Runs a module as it is."""

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def weight_for(output: Tensor, number: int) -> Tensor:
    """What multiplies an output before the sum: the same in every dtype, and no constant, which norms would cancel."""
    generator = torch.Generator().manual_seed(number)
    weights = torch.randn(output.shape, generator=generator, dtype=torch.float32).bfloat16()
    return weights.to(output.device, output.dtype)


def still(module: nn.Module) -> nn.Module:
    """Without dropout, so that two versions can be compared number by number."""
    for part, name in rates(module):
        setattr(part, name, 0.0)
    return module


def rates(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """The attributes that say how much is dropped, of modules of PyTorch and by their usual names."""
    for part in module.modules():
        for name in ("dropout", "dropout_p", "attention_dropout", "attn_dropout", "p"):
            if type(vars(part).get(name)) in (float, int) and (name != "p" or "drop" in type(part).__name__.lower()):
                yield part, name


def drops(module: nn.Module) -> bool:
    """Whether a module drops anything in the mode that it is in."""
    return any(part.training and getattr(part, name) for part, name in rates(original(module)))


def wide_copy(subject: Subject) -> tuple[nn.Module, tuple, dict]:
    """The module and its inputs in float64."""

    def wide(leaf: Any) -> Any:
        floating = isinstance(leaf, Tensor) and leaf.is_floating_point()
        return leaf.detach().double().requires_grad_(leaf.requires_grad) if floating else leaf

    return still(copied(subject.module)).double(), *tree_map(wide, (subject.inputs, subject.named))


@dataclass(frozen=True)
class Checked:
    """How far a result is from float64, in units of what the bound allows.

    Attributes:
        relative: the error by RMS of the module as it was and of the changed one, as a share of the result's own RMS,
            or of the largest of its layer's where that is more.
    """

    name: str
    share: float
    problem: str = ""
    relative: tuple[float, float] = (0.0, math.inf)

    @property
    def holds(self) -> bool:
        return not self.problem and self.share <= 1.0


@dataclass
class References:
    """What a module gives in float64, and in its own dtype."""

    exact: dict[str, Tensor]
    baseline: dict[str, Tensor]

    @classmethod
    def of(cls, subject: Subject) -> "References":
        with nothing_changed(), quiet():
            seeded()
            exact = results_of(*wide_copy(subject), wide=True)
            seeded()
            return cls(exact, results_of(still(copied(subject.module)), *fresh_inputs(subject.inputs, subject.named)))


def check_against(references: References, run: Callable[[], dict[str, Tensor]]) -> list[Checked]:
    """Hold what `run` gives against the reference module in float64, by the error of that module in its own dtype."""
    exact, baseline = references.exact, references.baseline
    with nothing_changed(), quiet():
        seeded()
        actual = run()
    return [
        checked(name, actual, baseline, exact)
        for name in baseline
        if name in actual or name.startswith(("output", "gradient of input"))
    ]


def summand_of_one(exact: Tensor, dtype: torch.dtype, baseline: dict[str, Tensor]) -> float | None:
    """For a single number, such as a loss: the baseline's error in it may be small by luck, and is no yardstick.

    A mean of numbers that were computed in a coarser dtype may be off by a 64th of that dtype's unit: their own errors
    of half a unit average out.
    """
    units = [torch.finfo(one.dtype).eps for one in baseline.values() if one.is_floating_point()]
    if not dtype.is_floating_point:
        return None
    own = torch.finfo(dtype).eps
    return largest(exact.detach()) * max(1.0, max(units, default=own) / own / 128) or None


# --8<-- [start:checked]
def checked(name: str, actual: dict[str, Tensor], baseline: dict[str, Tensor], exact: dict[str, Tensor]) -> Checked:
    if name not in actual or name not in exact:
        return Checked(name, math.inf, f"{name} is missing")
    three = actual[name].detach(), baseline[name].detach(), exact[name].detach().double()
    one_number = summand_of_one(exact[name], baseline[name].dtype, baseline) if exact[name].numel() == 1 else None
    agreement = compare(*three, largest_summand=one_number)
    layer = name.rpartition(".")[0]
    relative = relative_errors(*three, [one for each, one in exact.items() if layer and each.startswith(f"{layer}.")])
    if (
        agreement.problem.startswith("no yardstick") and layer
    ):  # terms cancel; the layer's other gradients tell their size
        sizes = [largest(one.detach()) for each, one in exact.items() if each.startswith(f"{layer}.") and one.numel()]
        agreement = compare(*three, largest_summand=max(sizes))
    if agreement.problem:
        return Checked(name, math.inf, f"{name}: {agreement.problem}", relative)
    shares = [
        error / bound
        for error, bound in ((agreement.error, agreement.bound), (agreement.rms, agreement.rms_bound))
        if bound
    ]
    share = max(shares, default=0.0 if agreement.holds else math.inf)
    return Checked(name, share, "" if agreement.holds else f"{name}: {agreement}", relative)


# --8<-- [end:checked]


def relative_errors(actual: Tensor, baseline: Tensor, exact: Tensor, layer: list[Tensor]) -> tuple[float, float]:
    """The RMS of the error before and after, as a share of the size of the result."""
    if actual.shape != exact.shape or not exact.numel():
        return 0.0, 0.0 if actual.shape == exact.shape else math.inf
    size = max(rms(one.detach().double()) for one in (exact, *layer)) or 1.0
    return rms(distance(baseline, exact)) / size, rms(distance(actual, exact).nan_to_num(posinf=1e300)) / size


NOISE = 0.02  # between the percentiles of two equal modules


@dataclass(frozen=True)
class Ratio:
    """How many times faster, and between what, from the 20th to the 80th percentile of both."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, before: Timing, after: Timing) -> "Ratio":
        return cls(before.p20 / after.p80, before.p50 / after.p50, before.p80 / after.p20)

    @property
    def word(self) -> str:
        """Faster or slower only where the percentiles do not overlap, by more than two equal modules may differ."""
        return "faster" if self.low > 1 + NOISE else "slower" if self.high < 1 - NOISE else "as fast"

    def __str__(self) -> str:
        return f"{self.middle:.2f}x ({self.low:.2f} to {self.high:.2f})"


@dataclass
class Verdict:
    """What `validate` found out."""

    names: tuple[str, str]
    device: str
    checks: list[Checked]
    not_compared: int
    cold: tuple[float, float]  # seconds of the first step: compilation is in it
    times: dict[str, tuple[Timing, Timing]]  # "forward", "backward" where there is a gradient, and "step"
    peaks: tuple[int | None, int | None]  # bytes beyond what was there
    breaks: tuple[int, int]
    graphs: tuple[int, int]
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return bool(self.checks) and all(check.holds for check in self.checks)

    @property
    def ratios(self) -> dict[str, Ratio]:
        return {name: Ratio.of(*pair) for name, pair in self.times.items()}

    def __str__(self) -> str:
        """The verdict in one line."""
        wrong = [check for check in self.checks if not check.holds]
        right = f"right ({len(self.checks)} results within the bound)"
        if wrong:
            right = f"WRONG ({len(wrong)} of {len(self.checks)} results beyond the bound, first {wrong[0].problem})"
        parts = [right, *(f"{name} {ratio.word} {ratio}" for name, ratio in self.ratios.items())]
        before, after = self.peaks
        if before and after is not None:
            parts.append(
                f"{'smaller' if after < before else 'larger' if after > before else 'as large'}: "
                f"{after / before:.2f} of the memory"
            )
        return "; ".join(parts)


def compare_modules(before: Subject, after: Subject, rounds: int, progress: Progress) -> Verdict:
    """Check, time and weigh two versions of a module.

    Raises:
        Refused: one of them raises or runs out of memory.
    """
    began = time.perf_counter()
    progress("holding outputs and gradients against float64")
    with refusing("the changed module"):
        checks = check_against(
            References.of(before), lambda: results_of(still(runnable(after)), *fresh_inputs(after.inputs, after.named))
        )
    progress("counting graph breaks")
    captured = [capture(subject) for subject in (before, after)]
    progress("timing both, side by side")
    with nothing_changed(), quiet(), refusing("one of the two"):
        twins = [Subject(runnable(one), *fresh_inputs(one.inputs, one.named)) for one in (before, after)]
        cold = tuple(first_step(twin) for twin in twins)
        times = {"forward": timed(twins, forward, rounds)}
        if all(differentiable(twin) for twin in twins):
            times["backward"] = timed_backward(twins, rounds)
        times["step"] = timed(twins, step, rounds)
        peaks = tuple(peak(twin) for twin in twins)
    names = {name.replace("_orig_mod.", "") for name, _ in after.module.named_parameters()}
    left = sum(name not in names for name, _ in before.module.named_parameters())
    return Verdict(
        (before.name, after.name),
        str(before.device),
        checks,
        left,
        cold,
        times,
        peaks,  # type: ignore[arg-type]
        tuple(len(one.breaks) for one in captured),
        tuple(len(one.graphs) for one in captured),  # type: ignore[arg-type]
        time.perf_counter() - began,
    )


def runnable(subject: Subject) -> nn.Module:
    """A copy that runs as the module does: compiled where the module was, with the same settings."""
    twin = copied(subject.module)
    if original(subject.module) is subject.module:
        return twin
    callback = subject.module.dynamo_ctx  # type: ignore[union-attr]
    return callback(twin)  # type: ignore[operator, return-value]


def forward(twin: Subject) -> None:
    with torch.no_grad():
        twin.module(*twin.inputs, **twin.named)


def step(twin: Subject) -> None:
    """Forward, and backward where there is a gradient."""
    backward_of(twin)()


def backward_of(twin: Subject) -> Callable[[], object]:
    """Runs the forward, and returns its backward, which does nothing where there is no gradient."""
    outputs = [one for one in tensors_of(leaves_of(twin.module(*twin.inputs, **twin.named))) if one.requires_grad]
    wanted = [one for one in (*twin.module.parameters(), *tensors_of((twin.inputs, twin.named))) if one.requires_grad]
    if not (outputs and wanted):
        return timing.nothing
    ones = [torch.ones_like(one) for one in outputs]
    return lambda: torch.autograd.grad(outputs, wanted, ones, allow_unused=True)


def differentiable(twin: Subject) -> bool:
    return backward_of(twin) is not timing.nothing


def first_step(twin: Subject) -> float:
    return timing.seconds_of(lambda: step(twin), twin.device, 1)


def timed(twins: list[Subject], run: Callable[[Subject], None], rounds: int) -> tuple[Timing, Timing]:
    """Both by the wall clock, launches included, in turns."""
    calls = {str(number): (lambda twin=twin: run(twin)) for number, twin in enumerate(twins)}
    measured = timing.measure(calls, twins[0].device, "calls", rounds=rounds, patience=10.0)
    return measured["0"], measured["1"]


# --8<-- [start:backward]
def timed_backward(twins: list[Subject], rounds: int, patience: float = 10.0) -> tuple[Timing, Timing]:
    """Both by the wall clock, in turns. A backward needs a forward of its own, which is over before the clock starts.

    Keeping one forward's graph for many backwards would be simpler: compiled code refuses that, since its backward
    writes over what the forward has kept.
    """
    samples: tuple[list[float], list[float]] = ([], [])
    for twin in twins * 3:  # the first backward compiles, and the third replays what CUDA graphs have recorded
        backward_of(twin)()
    with timing.no_garbage_collection():
        began = time.perf_counter()
        for turn in range(rounds):
            if turn >= 5 and time.perf_counter() - began > patience:
                break
            for number in (turn % 2, 1 - turn % 2):
                samples[number].append(timing.seconds_of(backward_of(twins[number]), twins[number].device, 1))
    return Timing.of(samples[0], 1), Timing.of(samples[1], 1)


# --8<-- [end:backward]


def peak(twin: Subject) -> int | None:
    """Bytes that a step needs beside the parameters and inputs; on a CPU, of what is not compiled.

    A replayed CUDA graph allocates nothing: what it needs, it took while it was recorded, and is not known here.
    """
    if twin.device.type == "cuda":
        if replays(twin.device):
            return None
        timing.synchronize(twin.device)
        torch.cuda.reset_peak_memory_stats(twin.device)
        before = torch.cuda.memory_allocated(twin.device)
        step(twin)
        timing.synchronize(twin.device)
        return torch.cuda.max_memory_allocated(twin.device) - before
    if original(twin.module) is not twin.module:
        return None
    from snippets.validation.assistant_module import loss_of

    wanted = [one for one in (*twin.module.parameters(), *tensors_of((twin.inputs, twin.named))) if one.requires_grad]
    return record_memory(twin.module, twin.inputs, twin.named, loss_of, bool(wanted), wanted).peak


def replays(device: torch.device) -> bool:
    """Whether torch.compile has recorded CUDA graphs on a device, that are still there."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    index = torch.cuda.current_device() if device.index is None else device.index
    return trees is not None and trees.get_manager(index, create_if_none_exists=False) is not None


__all__ = ["Refused", "Verdict", "check_against", "compare_modules", "one_line", "results_of", "still", "timed"]
