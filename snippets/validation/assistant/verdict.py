"""Is a changed module right, faster and smaller? Both are checked, then timed side by side."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from . import clock
from .allocator import Allocated
from .calls import leaves_of, tensors_of
from .clock import Timing
from .float64 import Checked, References, check_against
from .graphs import MOST_RUNS, capture, cleaned
from .results import RANDOM, SECOND, Results, results_of, weight_for
from .settings import nothing_changed, quiet, seeded
from .stages import Stages
from .subject import (
    Refused,
    Runs,
    Subject,
    check_same,
    copied,
    forgetting,
    fresh_inputs,
    original,
    refusing,
)

Progress = Callable[[str], None]
WIDE = 1.5  # times between the ends of a ratio's interval, from which on its middle says nothing
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

    @property
    def decides(self) -> bool:
        """Whether no gain was seen, or the percentiles of both say which is faster: a wide overlap says neither."""
        wide = self.low < 1 < self.high and self.high > WIDE * self.low
        return self.word != "as fast" or not (wide or self.middle > 1 + NOISE)

    def __str__(self) -> str:
        return f"{self.middle:.2f}x ({self.low:.2f} to {self.high:.2f})"


@dataclass
class Verdict:
    """What `validate` found out."""

    names: tuple[str, str]
    device: str
    checks: list[Checked]
    not_compared: int
    cold: tuple[float, float] | None = None  # seconds of the first step: compilation is in it
    times: dict[str, tuple[Timing, Timing]] = field(default_factory=dict)  # "forward", "backward", "step"
    peaks: tuple[int | None, int | None] = (None, None)  # bytes beyond what was there
    breaks: tuple[int, int] | None = None
    limits: list[str] = field(default_factory=list)  # what could not be compared, timed or put back, and why

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
        if not self.right:
            right = f"WRONG ({len(wrong)} of {len(self.checks)} results beyond the bound, first {wrong[0].problem})"
        parts = [right, *(f"{name} {ratio.word} {ratio}" for name, ratio in self.ratios.items())]
        before, after = self.peaks
        if before and after is not None:
            parts.append(
                f"{'smaller' if after < before else 'larger' if after > before else 'as large'}: "
                f"{after / before:.2f} of the memory"
            )
        return "; ".join(parts)


def compare_modules(before: Subject, after: Subject, rounds: int, stages: Stages) -> Verdict:
    """Check, time and weigh two versions of a module.

    Raises:
        Refused: one of them raises or runs out of memory, or there is nothing to compare.
    """
    unknown = unknown_to(after.module, before.module)
    checks, limits = stages.run(
        "comparison",
        "holding all results against float64",
        lambda: compared(before, after, unknown),
        ([], []),
        first=True,
    )
    if not checks:
        why = "interrupted before anything was compared" if stages.interrupted else NOTHING
        raise Refused(f"{before.name}: {why}")
    verdict = Verdict((before.name, after.name), str(before.device), checks, len(unknown), limits=limits)
    once = [replace(one, runs=Runs(MOST_RUNS - 1)) for one in (before, after)]
    found = stages.run("graph breaks", "counting graph breaks", lambda: [capture(one) for one in once], [])
    verdict.breaks = tuple(len(one.breaks) for one in found) or None  # type: ignore[assignment]
    stages.run("times", "timing both, side by side", lambda: weigh(verdict, before, after, rounds), None)
    verdict.limits += stages.skipped
    return verdict


NOTHING = "a call gives no tensor, number or word, writes to nothing, and has no gradient: there is nothing to compare"


def unknown_to(after: nn.Module, before: nn.Module) -> set[str]:
    """The parameters of one module that the other does not have."""
    ours, theirs = ({name for name, _ in original(one).named_parameters()} for one in (before, after))
    return ours - theirs


def compared(before: Subject, after: Subject, unknown: set[str]) -> tuple[list[Checked], list[str]]:
    """Every result of both, and what could not be compared."""
    with refusing("the original"):
        references = References.of(before)
        check_repeats(before, references)
    limits = [f"compared with the original itself: {references.problem}"] if references.problem else []
    with refusing("the changed module"), cleaned(), torch._inductor.config.patch(fallback_random=True):
        again = any(name.endswith(SECOND) for name in references.baseline)
        checks = check_against(references, lambda: results_of(*running(after), again=again), unknown)
    if any(name.startswith(RANDOM) for name in references.baseline) and all(check.holds for check in checks):
        with refusing("the changed module"), cleaned():
            checks += slope(before, after)
    return checks, limits


def running(subject: Subject) -> tuple[nn.Module, tuple, dict]:
    return runnable(subject), *fresh_inputs(subject.inputs, subject.named)


def check_repeats(subject: Subject, references: References) -> None:
    """Raise a Refused for a module whose results differ from run to run with the same seed."""
    first = [
        one for name, one in references.baseline.items() if name.startswith("output") and not name.endswith(SECOND)
    ]
    with nothing_changed(), quiet():
        seeded()
        second = results_of(*running(subject))
    check_same(subject, first, [one for name, one in second.items() if name.startswith("output")])


STEP, OFF = 2.0**-9, 0.05  # a step of the parameters as a share of their size; of the slope that may be missed


def slope(before: Subject, after: Subject) -> list[Checked]:
    """Is the gradient that of the outputs, with the random numbers that a module draws by itself?

    Compiled code draws its own, and may draw others in backward, where it computes something again. So each is held
    against differences of its own outputs. The original tells whether these say anything: at a kink they do not.
    """
    off = [missed_slope(subject) for subject in (before, after)]
    if None in off or off[0] > OFF / 2:  # type: ignore[operator]
        return []
    problem = f"differences of the outputs are {off[1]:.0%} of the gradient's size from it" if off[1] > OFF else ""  # type: ignore[operator]
    name = "gradient with the module's own random numbers"
    return [Checked(name, off[1] / OFF, f"{name}: {problem}" if problem else "")]  # type: ignore[operator]


def missed_slope(subject: Subject) -> float | None:
    """How far differences of the outputs along some direction are from the gradient, as a share of its size."""
    with nothing_changed(), quiet():
        module, inputs, named = running(subject)
        trained = {name: one for name, one in original(module).named_parameters() if one.requires_grad}
        generator = torch.Generator().manual_seed(0)
        ways = {
            name: torch.randn(one.shape, generator=generator).to(one) * one.detach().square().mean().sqrt()
            for name, one in trained.items()
        }

        def moved(by: float) -> Results:
            for name, one in trained.items():
                one.data.add_(ways[name], alpha=by)
            seeded()
            return results_of(module, *fresh_inputs(inputs, named))

        here, up, down = moved(0.0), moved(STEP), moved(-2 * STEP)
        found = {name: here[f"gradient of {name}"] for name in ways if f"gradient of {name}" in here}
        slopes = [(one.double() * ways[name]).flatten() for name, one in found.items()]
        if not slopes or not (size := float(torch.cat(slopes).norm())):
            return None
        return abs((total(up) - total(down)) / (2 * STEP) - float(torch.cat(slopes).sum())) / size


def total(results: Results) -> float:
    """The loss of which the gradients are."""
    outputs = [one for name, one in results.items() if name.startswith("output") and one.is_floating_point()]
    return sum(float((one.double() * weight_for(one, number).double()).sum()) for number, one in enumerate(outputs))


def weigh(verdict: Verdict, before: Subject, after: Subject, rounds: int) -> None:
    """Time both and count their memory, into the verdict, as far as they let themselves."""
    try:
        with nothing_changed(), quiet(), refusing("one of the two"):
            twins = [Subject(*running(one)) for one in (before, after)]
            twins = [replace(twin, before=forgetting(twin.module)) for twin in twins]
            verdict.cold = tuple(first_step(twin) for twin in twins)  # type: ignore[assignment]
            run = forward if all(map(takes_no_derivative, twins)) else forward_with_graph
            verdict.times["forward"] = timed(twins, run, rounds)
            if all(differentiable(twin) for twin in twins):
                verdict.times["backward"] = timed_backward(twins, rounds)
            verdict.times["step"] = timed(twins, step, rounds)
            verdict.peaks = tuple(peak(twin) for twin in twins)  # type: ignore[assignment]
    except Refused as error:
        verdict.limits.append(f"not all was timed: {error}")


def runnable(subject: Subject) -> nn.Module:
    """A copy that runs as the module does: compiled where the module was, with the same settings."""
    twin = copied(subject.module)
    if original(subject.module) is subject.module:
        return twin
    callback = subject.module.dynamo_ctx  # type: ignore[union-attr]
    return callback(twin)  # type: ignore[operator, return-value]


def time_of_step(subject: Subject) -> Timing:
    """Of a module alone, to hold a later version's against."""
    with nothing_changed(), quiet(), refusing(subject.name):
        twin = subject.again()
        return clock.measure({"step": lambda: step(twin)}, twin.device, rounds=15, patience=10.0)["step"]


def forward(twin: Subject) -> None:
    with torch.no_grad():
        twin()


def forward_with_graph(twin: Subject) -> None:
    """For a module that takes a derivative inside."""
    twin()


def takes_no_derivative(twin: Subject) -> bool:
    try:
        forward(twin)
    except Exception:  # noqa: BLE001  # a module may raise anything
        return False
    return True


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
    """Bytes that a step needs beside the parameters and inputs, as the allocator saw it.

    A replayed CUDA graph allocates nothing: what it needs, it took while it was recorded, and is not known here.
    """
    if twin.device.type == "cuda" and replays(twin.device):
        return None
    with Allocated(twin.device) as allocated:
        step(twin)
    return allocated.peak


def replays(device: torch.device) -> bool:
    """Whether torch.compile has recorded CUDA graphs on a device, that are still there."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    index = torch.cuda.current_device() if device.index is None else device.index
    return trees is not None and trees.get_manager(index, create_if_none_exists=False) is not None
