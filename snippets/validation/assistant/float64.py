"""Is a changed module right? Its outputs and gradients are compared with the original's in float64."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from .calls import leaves_of, tensors_of
from .settings import nothing_changed, quiet, seeded
from .subject import Subject, copied, fresh_inputs, original


@dataclass(frozen=True)
class Agreement:
    """The errors against float64 and what their bounds allow, all absolute: the largest, and the root mean square."""

    error: float
    bound: float
    rms: float = 0.0
    rms_bound: float = 0.0
    problem: str = ""  # what is wrong where no bound can be drawn

    @property
    def holds(self) -> bool:
        return not self.problem and self.error <= self.bound and self.rms <= self.rms_bound

    def __str__(self) -> str:
        both = (("largest", self.error, self.bound), ("RMS", self.rms, self.rms_bound))
        told = [one for one in both if one[1] > one[2]] or both
        return self.problem or " and ".join(f"{which} error {e:.1e}, expected at most {b:.1e}" for which, e, b in told)


def compare(actual: Tensor, baseline: Tensor, reference: Tensor, largest_summand: float | None = None) -> Agreement:
    """Hold a result against float64, by the yardstick of PyTorch's own op in the same dtype.

    largest error(actual) <= 2 * largest error(baseline) + 2 eps * largest summand
    RMS error(actual)     <= 2 * RMS error(baseline) + eps / 4 * RMS summand (see `allowance`)

    Args:
        actual: the result to judge: any shape, fp32/fp16/bf16.
        baseline: the result of the plain PyTorch op on the same inputs; same shape and dtype.
        reference: the result of that op on the same inputs, upcast to float64; same shape.
        largest_summand: the largest absolute term of the sums that make up the result, for results whose
            terms cancel; where it is not given, the largest finite absolute value of the reference.
    """
    if problem := mismatch(actual, baseline, reference):
        return Agreement(float("inf"), 0.0, problem=problem)
    if actual.numel() == 0:
        return Agreement(0.0, 0.0)
    ours, plain = distance(actual, reference), distance(baseline, reference)
    beyond = plain.isinf()  # where PyTorch's op itself leaves the dtype's range, doing as it does is no error
    ours = torch.where(beyond & (distance(actual, baseline.double()) == 0), 0.0, ours)
    inside = torch.where(beyond, 0.0, reference)
    eps = torch.finfo(actual.dtype).eps
    scale = largest_summand or largest(inside)
    if largest(plain) > eps**0.5 * scale:
        why = f"the baseline is {largest(plain):.1e} from the reference, whose largest summand is {scale:.1e}"
        return Agreement(float("inf"), 0.0, problem=f"no yardstick: {why}; one of the three is wrong")
    return Agreement(
        error=ours.max().item(),
        bound=2 * largest(plain) + 2 * eps * scale,
        rms=rms(torch.where(beyond, 0.0, ours)),
        rms_bound=max(2 * rms(plain) + allowance(eps) * scale * evenness(inside), eps * scale / actual.numel() ** 0.5),
    )


def distance(result: Tensor, reference: Tensor) -> Tensor:
    """|result - reference| in float64: 0 where both are NaN or the same infinity, inf where only one is."""
    same = (result == reference) | (result.isnan() & reference.isnan())
    apart = (result.double() - reference).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
    return torch.where(same, 0.0, apart)


def largest(values: Tensor) -> float:
    """The largest finite absolute value; 0 where there is none."""
    return values.abs().nan_to_num(nan=0.0, posinf=0.0).max().item()


def rms(values: Tensor) -> float:
    """The root of the mean square, to which what is not finite adds nothing."""
    finite = values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return torch.linalg.vector_norm(finite).item() / values.numel() ** 0.5


def evenness(values: Tensor) -> float:
    """The RMS as a share of the largest value: 1 where all are as large, less the fewer are."""
    return rms(values) / (largest(values) or 1.0)


def allowance(eps: float) -> float:
    """The relative error of a result that is rounded once, by RMS: eps / 4, and of some arithmetic in fp32."""
    return eps / 4 + 4 * torch.finfo(torch.float32).eps


def mismatch(actual: Tensor, baseline: Tensor, reference: Tensor) -> str:
    """Why the three cannot be compared; empty if they can."""
    if reference.dtype != torch.float64:
        return f"expected a float64 reference, got {reference.dtype}"
    if baseline.shape != reference.shape:
        return f"expected a baseline of shape {tuple(reference.shape)}, got {tuple(baseline.shape)}"
    if actual.shape != reference.shape:
        return f"expected shape {tuple(reference.shape)}, got {tuple(actual.shape)}"
    if actual.dtype != baseline.dtype:
        return f"expected {baseline.dtype}, got {actual.dtype}"
    return ""


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


def results_of(module: nn.Module, inputs: tuple, named: dict, wide: bool = False) -> dict[str, Tensor]:
    """Outputs by number, gradients by name. The loss is a sum with weights that every version shares."""
    given = list(tensors_of((inputs, named)))
    with Widened() if wide else nullcontext():
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
