"""Is a changed module right, faster and smaller? Both are checked, then timed side by side."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from . import clock
from .calls import leaves_of, tensors_of
from .clock import Timing
from .float64 import Checked, References, check_against, results_of, still
from .graphs import capture
from .settings import nothing_changed, quiet
from .subject import Subject, copied, fresh_inputs, original, refusing
from .trace import record_memory

Progress = Callable[[str], None]
NOISE = 0.02  # between the percentiles of two equal modules


def silent(message: str) -> None:
    """No progress."""


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
        tuple(len(one.breaks) for one in captured),  # type: ignore[arg-type]
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
        twin()


def step(twin: Subject) -> None:
    """Forward, and backward where there is a gradient."""
    backward_of(twin)()


def backward_of(twin: Subject) -> Callable[[], object]:
    """Runs the forward, and returns its backward, which does nothing where there is no gradient."""
    outputs = [one for one in tensors_of(leaves_of(twin())) if one.requires_grad]
    wanted = twin.differentiated
    if not (outputs and wanted):
        return clock.nothing
    ones = [torch.ones_like(one) for one in outputs]
    return lambda: torch.autograd.grad(outputs, wanted, ones, allow_unused=True)


def differentiable(twin: Subject) -> bool:
    return backward_of(twin) is not clock.nothing


def first_step(twin: Subject) -> float:
    return clock.seconds_of(lambda: step(twin), twin.device, 1)


def timed(twins: list[Subject], run: Callable[[Subject], None], rounds: int) -> tuple[Timing, Timing]:
    """Both by the wall clock, launches included, in turns."""
    calls = {str(number): (lambda twin=twin: run(twin)) for number, twin in enumerate(twins)}
    measured = clock.measure(calls, twins[0].device, rounds, patience=10.0)
    return measured["0"], measured["1"]


# --8<-- [start:backward]
def timed_backward(twins: list[Subject], rounds: int, patience: float = 10.0) -> tuple[Timing, Timing]:
    """Both by the wall clock, in turns. A backward needs a forward of its own, which is over before the clock starts.

    Keeping one forward's graph for many backwards would be simpler: compiled code refuses that, since its backward
    writes over what the forward has kept.
    """
    for twin in twins * 3:  # the first backward compiles, and the third replays what CUDA graphs have recorded
        backward_of(twin)()
    sample = {
        str(number): (lambda twin=twin: clock.seconds_of(backward_of(twin), twin.device, 1))
        for number, twin in enumerate(twins)
    }
    measured = clock.in_turns(sample, rounds, patience)
    return measured["0"], measured["1"]


# --8<-- [end:backward]


def peak(twin: Subject) -> int | None:
    """Bytes that a step needs beside the parameters and inputs; on a CPU, of what is not compiled.

    A replayed CUDA graph allocates nothing: what it needs, it took while it was recorded, and is not known here.
    """
    if twin.device.type == "cuda":
        if replays(twin.device):
            return None
        clock.synchronize(twin.device)
        torch.cuda.reset_peak_memory_stats(twin.device)
        before = torch.cuda.memory_allocated(twin.device)
        step(twin)
        clock.synchronize(twin.device)
        return torch.cuda.max_memory_allocated(twin.device) - before
    if original(twin.module) is not twin.module:
        return None
    return record_memory(twin).peak


def replays(device: torch.device) -> bool:
    """Whether torch.compile has recorded CUDA graphs on a device, that are still there."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    index = torch.cuda.current_device() if device.index is None else device.index
    return trees is not None and trees.get_manager(index, create_if_none_exists=False) is not None
