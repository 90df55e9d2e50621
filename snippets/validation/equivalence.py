"""Is the fast version the same function? The check that runs before anything on this site is timed.

Run `python -m snippets.validation.equivalence` to see a wrong kernel that `allclose` lets pass.
"""
# --8<-- [start:imports]
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
# --8<-- [end:imports]


# --8<-- [start:agreement]
@dataclass(frozen=True)
class Agreement:
    """The largest error against float64, and the largest that the bound allows (both absolute)."""

    error: float
    bound: float
    problem: str = ""  # what is wrong where the two cannot be compared as numbers

    @property
    def holds(self) -> bool:
        return not self.problem and self.error <= self.bound
# --8<-- [end:agreement]


# --8<-- [start:compare]
def compare(actual: Tensor, baseline: Tensor, reference: Tensor, largest_summand: float | None = None) -> Agreement:
    """Hold a result against float64, by the yardstick of PyTorch's own op in the same dtype.

    error(actual) <= 2 * error(baseline) + 4 eps * largest summand, with error = max |. - reference|.

    Args:
        actual: the result to judge, any shape, fp32/fp16/bf16.
        baseline: the result of the plain PyTorch op on the same inputs; same shape and dtype as `actual`.
        reference: the result of the op on inputs upcast to float64.
        largest_summand: the largest absolute term of the sums that make up the result; where it is not
            given, the largest absolute value of the reference.

    The factor 2 is FlashAttention's. The second term is for results whose terms cancel.
    """
    if actual.shape != reference.shape:
        return Agreement(float("inf"), 0.0, f"expected shape {tuple(reference.shape)}, got {tuple(actual.shape)}")
    if actual.dtype != baseline.dtype:
        return Agreement(float("inf"), 0.0, f"expected {baseline.dtype}, got {actual.dtype}")
    if actual.numel() == 0:
        return Agreement(0.0, 0.0)
    reference = reference.double()
    finite = reference.isfinite() & baseline.isfinite()  # beyond the dtype's range, the baseline decides
    expected = torch.where(reference.isfinite(), baseline.double(), reference)
    if not torch.equal(actual.double()[~finite].nan_to_num(1, 2, 3), expected[~finite].nan_to_num(1, 2, 3)):
        return Agreement(float("inf"), 0.0, "nan or inf where the reference has none, or the reverse")
    if not finite.any():
        return Agreement(0.0, 0.0)
    if not actual[finite].isfinite().all():
        return Agreement(float("inf"), 0.0, "nan or inf where the reference is finite")
    reference = reference[finite]
    if largest_summand is None:
        largest_summand = reference.abs().max().item()
    eps = torch.finfo(actual.dtype).eps
    error = (actual[finite].double() - reference).abs().max().item()
    allowed = (baseline[finite].double() - reference).abs().max().item()
    return Agreement(error, 2 * allowed + 4 * eps * largest_summand)
# --8<-- [end:compare]


# --8<-- [start:check]
def check(
    actual: Sequence[Tensor],
    baseline: Sequence[Tensor],
    reference: Sequence[Tensor],
    names: Sequence[str],
    largest_summands: Sequence[float | None] | None = None,
) -> list[Agreement]:
    """Compare each named result (the output, every gradient) and raise if one misses its bound.

    Raises:
        AssertionError: names the result, its error and its bound.
    """
    summands = largest_summands or [None] * len(names)
    agreements = []
    for name, ours, plain, exact, summand in zip(names, actual, baseline, reference, summands, strict=True):
        agreement = compare(ours, plain, exact, summand)
        if not agreement.holds:
            why = agreement.problem or f"error {agreement.error:.3g} exceeds the bound {agreement.bound:.3g}"
            raise AssertionError(f"{name}: {why}")
        agreements.append(agreement)
    return agreements
# --8<-- [end:check]
