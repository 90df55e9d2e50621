"""The equivalence check: what it must refuse, what it must let pass, and what it cannot see."""

import math
import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from snippets.validation import equivalence
from snippets.validation.equivalence import Agreement, check, compare, distance
from snippets.validation.equivalence_candidates import (
    gradient,
    only_at_target,
    plain,
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def judge(actual, baseline, reference, dtype=torch.float32, **options):
    """Compare short lists of numbers."""
    one, other = (torch.tensor(values, dtype=dtype) for values in (actual, baseline))
    return compare(one, other, torch.tensor(reference, dtype=torch.float64), **options)


# ---- the bound ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bound_is_where_it_is_said_to_be(dtype, device):
    """2 * error(baseline) + 2 eps * largest, and neither more nor less."""
    reference = torch.linspace(-1, 1, 1001, dtype=torch.float64, device=device)
    baseline = reference.to(dtype)
    bound = 2 * (baseline.double() - reference).abs().max() + 2 * torch.finfo(dtype).eps
    assert compare(baseline, baseline, reference).bound == pytest.approx(bound.item(), rel=1e-12)
    for off, holds in ((0.5, True), (2.0, False)):
        actual = baseline.clone()
        actual[500] += off * bound  # one element of a thousand, the one whose value is 0
        assert compare(actual, baseline, reference).holds == holds


def test_the_error_is_the_largest_over_all_elements():
    agreement = judge([1.0, 2.5, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert agreement.error == 0.5 and not agreement.holds


def test_a_better_result_than_the_baselines_holds():
    assert judge([1.0], [1.0001], [1.0]).error == 0.0
    assert judge([1.0], [1.0001], [1.0]).holds


def test_terms_that_cancel_need_the_largest_summand():
    """1000 - 1000 in fp32 may well leave 1e-4: that is rounding of the summands, not an error."""
    assert not judge([1e-4], [0.0], [0.0]).holds
    assert judge([1e-4], [0.0], [0.0], largest_summand=1000.0).holds
    assert not judge([1e-3], [0.0], [0.0], largest_summand=1000.0).holds


def test_a_baseline_far_from_the_reference_is_no_yardstick():
    """With the wrong reference every error would be within twice the baseline's."""
    agreement = judge([7.0], [7.0], [3.0])
    assert not agreement.holds
    assert "no yardstick: the baseline is 4.0e+00 from the reference" in agreement.problem


def test_half_of_the_digits_are_what_a_yardstick_needs():
    assert judge([1.0], [1.0 + 1e-4], [1.0]).holds
    assert "no yardstick" in judge([1.0], [1.0 + 1e-3], [1.0]).problem


# ---- the bound on the RMS error --------------------------------------------------------------------------------------


def normal(size, dtype, seed=0):
    """Normal numbers, exact and rounded."""
    exact = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return exact, exact.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rms_bound_is_where_it_is_said_to_be(dtype):
    """2 * RMS error(baseline) + eps / 4 * RMS, and some eps of fp32, of errors that the other bound lets pass."""
    exact, baseline = normal(100_000, dtype)
    error, size = ((t.square().mean().sqrt()) for t in (baseline.double() - exact, exact))
    bound = 2 * error + (torch.finfo(dtype).eps / 4 + 4 * 2**-23) * size
    agreement = compare(baseline, baseline, exact)
    assert agreement.rms_bound == pytest.approx(bound.item(), rel=1e-9)
    assert agreement.rms == pytest.approx(error.item(), rel=1e-9)
    off = exact + (torch.rand(exact.shape, generator=torch.Generator().manual_seed(1)) < 0.5).mul(2).sub(1) * bound
    assert compare(off.to(dtype), baseline, exact).error < compare(off.to(dtype), baseline, exact).bound
    assert not compare(off.to(dtype), baseline, exact).holds
    assert compare((exact + 0.2 * (off - exact)).to(dtype), baseline, exact).holds


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 2, 3, 10, 1000, 100_000])
def test_a_result_that_is_cut_off_instead_of_rounded_holds(size, dtype):
    """As Triton's interpreter stores bf16: twice the error of rounding, and of few elements perhaps all the unlucky."""
    for seed in range(20):
        exact, baseline = normal(size, dtype, seed)
        towards_zero = torch.nextafter(baseline, torch.zeros_like(baseline))
        cut = torch.where(baseline.double().abs() > exact.abs(), towards_zero, baseline)
        assert compare(cut, baseline, exact).holds


@pytest.mark.parametrize("columns", [4096, 32000, 128256])
def test_a_loss_that_is_off_is_refused_and_its_neighbours_are_not(columns):
    """One element: rounded to either side it holds, off by 1.2% it does not, whatever luck the baseline had."""
    for exact in torch.linspace(math.log(columns), math.log(columns) + 0.5, 50, dtype=torch.float64):
        baseline = exact.bfloat16()
        for right in (baseline, torch.nextafter(baseline, (exact - baseline.double()).sign().bfloat16() * 100)):
            assert compare(right, baseline, exact).holds
        off = exact + 0.012 * exact
        assert not compare(off.bfloat16(), baseline, exact).holds, exact


def test_rows_that_are_not_finite_hide_no_others():
    exact, right = normal((4, 1000), torch.bfloat16)
    for t in (exact, right):
        t[0], t[1], t[2, ::2] = NAN, INF, -INF
    assert compare(right, right, exact).holds
    assert compare(right, right, exact).rms > 0
    wrong = right.clone()
    wrong[3] *= 1.05
    agreement = compare(wrong, right, exact)
    assert agreement.rms > agreement.rms_bound


def test_a_gradient_that_is_zero_almost_everywhere():
    """Few errors count as much as their share of what there is, and noise where there is nothing counts too."""
    exact = torch.zeros(1000, 1000, dtype=torch.float64)
    exact[:, 7] = normal(1000, torch.float64)[0]
    right = exact.bfloat16()
    assert compare(right, right, exact).holds
    assert not compare(1.05 * right, right, exact).holds
    assert not compare(right + 1e-3, right, exact).holds
    assert "RMS" in str(compare(right + 1e-3, right, exact)) and "largest" not in str(
        compare(right + 1e-3, right, exact)
    )


def test_terms_that_cancel_may_be_off_by_their_own_size_everywhere():
    exact = torch.linspace(-1, 1, 1000, dtype=torch.float64)
    baseline, off = exact.float(), (exact + 2e-5).float()  # the baseline happened to round to the truth
    assert not compare(off, baseline, exact).holds
    assert compare(off, baseline, exact, largest_summand=1000.0).holds
    assert not compare((exact + 1e-3).float(), baseline, exact, largest_summand=1000.0).holds


def uneven_norm(x, factor=1.0):
    """A norm whose weight is 50 in one column and 1 in the others, which are a factor too large."""
    weight = torch.full_like(x[0], factor)
    weight[3] = 50
    return F.rms_norm(x, x.shape[-1:], weight)


NONSENSE = {
    "a cross-entropy gradient that is zero except at the target": (gradient, only_at_target),
    "a softmax that is zero where it is less than half its mean": (
        plain,
        lambda x: plain(x) * (plain(x) > 0.5 / len(x[0])),
    ),
    "a norm 5% too large in all columns but one": (uneven_norm, lambda x: uneven_norm(x, 1.05)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("what", NONSENSE)
def test_what_the_bound_on_the_largest_error_lets_pass_in_bf16(what, device):
    right, wrong = NONSENSE[what]
    x = normal((64, 4096), torch.bfloat16)[1].to(device)
    baseline, exact = right(x), right(x.double())
    agreement = compare(wrong(x), baseline, exact)
    assert agreement.error < agreement.bound and not agreement.holds
    assert re.fullmatch(r"RMS error \S+, expected at most \S+", str(agreement))
    assert compare(right(x.float()).bfloat16(), baseline, exact).holds


def test_what_the_bound_on_the_rms_error_lets_pass():
    exact, baseline = normal(100_000, torch.bfloat16)
    off = baseline.clone()
    off[0] += 0.5
    agreement = compare(off, baseline, exact)
    assert agreement.rms < agreement.rms_bound and not agreement.holds
    assert re.fullmatch(r"largest error \S+, expected at most \S+", str(agreement))


# ---- NaN, infinity, nothing -----------------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("wrong", [NAN, INF, -INF, 1e6])
def test_a_value_that_is_none_is_refused(wrong):
    assert not judge([1.0, wrong], [1.0, 2.0], [1.0, 2.0]).holds


@pytest.mark.parametrize("special", [NAN, INF, -INF])
def test_nan_and_infinity_are_expected_where_the_reference_has_them(special):
    assert judge([1.0, special], [1.0, special], [1.0, special]).holds
    for wrong in {"nan": NAN, "inf": INF, "-inf": -INF, "one": 1.0, "two": 2.0, "three": 3.0}.values():
        if repr(wrong) != repr(special):
            assert not judge([1.0, wrong], [1.0, special], [1.0, special]).holds, f"{wrong} passed for {special}"


def test_beyond_the_range_of_the_dtype():
    """Finite in float64, not in fp16: to overflow as PyTorch does is no error, nor to be right where it does."""
    assert judge([1.0, INF], [1.0, INF], [1.0, 1e6], torch.float16).holds
    assert not judge([1.0, -INF], [1.0, INF], [1.0, 1e6], torch.float16).holds
    assert judge([1.0, 2.0], [1.0, INF], [1.0, 2.0], torch.float16).holds
    assert not judge([1.0, 2.5], [1.0, INF], [1.0, 2.0], torch.float16).holds


def test_what_overflows_does_not_widen_the_bound_of_the_rest():
    assert not judge([1.5, INF], [1.0, INF], [1.0, 1e6], torch.float16).holds
    assert not judge([1.5, INF], [1.0, INF], [1.0, INF]).holds


def test_nothing_to_compare_agrees():
    empty = torch.empty(0, 5)
    assert compare(empty, empty, empty.double()) == Agreement(0.0, 0.0)


def test_zeros_agree_and_nothing_else_agrees_with_them():
    assert judge([0.0, -0.0], [0.0, 0.0], [0.0, 0.0]).holds
    assert not judge([1e-30, 0.0], [0.0, 0.0], [0.0, 0.0]).holds


def test_what_is_compared_in_parts_is_judged_as_a_whole(monkeypatch):
    reference = torch.randn(64, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).t()
    baseline = reference.to(torch.bfloat16)
    actual = baseline.clone()
    actual[-1, -1] += 1  # the last part's last element
    reference[0, 0], baseline[0, 0] = torch.inf, torch.inf
    whole = compare(actual, baseline, reference)
    monkeypatch.setattr(equivalence, "chunks", partial(equivalence.chunks, elements=1000))
    in_parts = compare(actual, baseline, reference)
    assert (in_parts.error, in_parts.bound) == (whole.error, whole.bound) and not in_parts.holds
    assert (in_parts.rms, in_parts.rms_bound) == pytest.approx((whole.rms, whole.rms_bound), rel=1e-12)


def test_distance():
    numbers = [1.0, NAN, INF, -INF]
    table = [[distance(torch.tensor(a), torch.tensor(b).double()).item() for b in numbers] for a in numbers]
    assert table == [[0.0 if row == column else INF for column in range(4)] for row in range(4)]
    assert distance(torch.tensor(1.0), torch.tensor(3.0).double()) == 2.0


# ---- what cannot be compared ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actual", "baseline", "reference", "problem"),
    [
        (torch.ones(3), torch.ones(3), torch.ones(3), "expected a float64 reference, got torch.float32"),
        (torch.ones(3), torch.ones(1), torch.ones(3).double(), r"expected a baseline of shape (3,), got (1,)"),
        (torch.ones(1), torch.ones(3), torch.ones(3).double(), r"expected shape (3,), got (1,)"),
        (torch.ones(3).half(), torch.ones(3), torch.ones(3).double(), "expected torch.float32, got torch.float16"),
    ],
)
def test_mismatches_are_named(actual, baseline, reference, problem):
    """Broadcasting would let some of these through."""
    agreement = compare(actual, baseline, reference)
    assert not agreement.holds
    assert agreement.problem == problem


# ---- several results ------------------------------------------------------------------------------------------------


def test_check_names_the_result_that_is_wrong():
    right = {"output": torch.ones(3), "x.grad": torch.ones(3)}
    exact = {name: tensor.double() for name, tensor in right.items()}
    assert set(check(right, right, exact)) == {"output", "x.grad"}
    with pytest.raises(
        AssertionError, match=r"x\.grad: largest error 1\.0e\+00, expected at most 2\.4e-07 and RMS error"
    ):
        check(right | {"x.grad": torch.zeros(3)}, right, exact)
    with pytest.raises(AssertionError, match=r"expected the results \['output', 'x.grad'\], got \['output'\]"):
        check({"output": torch.ones(3)}, right, exact)


def test_check_hands_on_the_largest_summands():
    one, other = {"g": torch.tensor([1e-4])}, {"g": torch.tensor([0.0])}
    exact = {"g": torch.tensor([0.0]).double()}
    with pytest.raises(AssertionError):
        check(one, other, exact)
    check(one, other, exact, {"g": 1000.0})
