"""Is the fast version the same function? The check that runs before anything on this site is timed.

agreement = compare(fast(x), plain(x), plain(x.double()))
print("passes" if agreement.holds else "fails", agreement)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


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


# --8<-- [start:compare]
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
    ours, plain, inside, error = Size(), Size(), Size(), 0.0
    for result, op, exact in zip(*map(chunks, (actual, baseline, reference)), strict=True):
        of_op = distance(op, exact)
        beyond = of_op.isinf()  # where PyTorch's op itself leaves the dtype's range, doing as it does is no error
        apart = torch.where(beyond & (distance(result, op.double()) == 0), 0.0, distance(result, exact))
        error = max(error, apart.max().item())
        ours.add(torch.where(beyond, 0.0, apart))
        plain.add(of_op)
        inside.add(torch.where(beyond, 0.0, exact))
    eps = torch.finfo(actual.dtype).eps
    scale = largest_summand or inside.largest
    if plain.largest > eps**0.5 * scale:
        why = f"the baseline is {plain.largest:.1e} from the reference, whose largest summand is {scale:.1e}"
        return Agreement(float("inf"), 0.0, problem=f"no yardstick: {why}; one of the three is wrong")
    return Agreement(
        error=error,
        bound=2 * plain.largest + 2 * eps * scale,
        rms=ours.rms,
        rms_bound=max(2 * plain.rms + allowance(eps) * scale * inside.evenness, eps * scale / actual.numel() ** 0.5),
    )


# --8<-- [end:compare]


# --8<-- [start:distance]
def distance(result: Tensor, reference: Tensor) -> Tensor:
    """|result - reference| in float64: 0 where both are NaN or the same infinity, inf where only one is."""
    same = (result == reference) | (result.isnan() & reference.isnan())
    apart = (result.double() - reference).abs().nan_to_num(nan=float("inf"), posinf=float("inf"))
    return torch.where(same, 0.0, apart)


def chunks(tensor: Tensor, elements: int = 2**26) -> tuple[Tensor, ...]:
    """A tensor in parts: the float64 copies that a comparison makes of a large one would fill a GPU."""
    return tensor.reshape(-1).split(elements)


# --8<-- [end:distance]


# --8<-- [start:rms]
@dataclass
class Size:
    """How large the values are that were added; what is not finite adds nothing.

    Attributes:
        largest: the largest absolute value.
        norm: the root of the sum of squares, of so many values (`number`).
    """

    largest: float = 0.0
    norm: float = 0.0
    number: int = 0

    def add(self, values: Tensor) -> None:
        finite = values.abs().nan_to_num(nan=0.0, posinf=0.0)
        self.largest = max(self.largest, finite.max().item())
        self.norm = math.hypot(self.norm, torch.linalg.vector_norm(finite).item())
        self.number += values.numel()

    @property
    def rms(self) -> float:
        return self.norm / self.number**0.5

    @property
    def evenness(self) -> float:
        """The RMS as a share of the largest value: 1 where all are as large, less the fewer are."""
        return self.rms / (self.largest or 1.0)


def allowance(eps: float) -> float:
    """The relative error of a result that is rounded once, by RMS: eps / 4, and of some arithmetic in fp32."""
    return eps / 4 + 4 * torch.finfo(torch.float32).eps


# --8<-- [end:rms]


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


def check(
    actual: Mapping[str, Tensor],
    baseline: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    largest_summands: Mapping[str, float] | None = None,
) -> dict[str, Agreement]:
    """Compare every named result: the output, and the gradient of each input.

    Raises:
        AssertionError: a result is missing, or misses its bound; names it.
    """
    if set(actual) != set(reference):
        raise AssertionError(f"expected the results {sorted(reference)}, got {sorted(actual)}")
    agreements = {
        name: compare(actual[name], baseline[name], reference[name], (largest_summands or {}).get(name))
        for name in reference
    }
    for name, agreement in agreements.items():
        if not agreement.holds:
            raise AssertionError(f"{name}: {agreement}")
    return agreements
