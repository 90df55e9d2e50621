"""Every case names results that its check must refuse: in fp32 and bf16 each is refused, and what is right passes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from snippets.validation import equivalence
from snippets.validation.equivalence import check, compare
from tests.benchmarks import runner
from tests.benchmarks.case import Case, Point, Results, Workload
from tests.benchmarks.runner import discover, load
from tests.benchmarks.source import ROOT

READ = "tests/benchmarks", "snippets/**/*.py", "tests/remembered.py"  # by what finds the cases

CPU = torch.device("cpu")
ROWS = {"rows": 64, "columns": 1024}


def points(name: str) -> list[Point]:
    """The points at which a case is tested."""
    return [
        replace(point, dtype=dtype) for point in load(discover()[name]).checked() for dtype in ("float32", "bfloat16")
    ]


def at(case: Case, point: Point) -> tuple[Workload, Results, Results]:
    """The workload, and the results of its baseline and in float64."""
    torch.manual_seed(0)
    workload = case.prepare(point, CPU)
    variant = workload.variants[workload.baseline]
    return workload, copies(variant.results(variant.build()())), workload.reference()


def copies(results: Results) -> Results:
    return {name: t.detach().clone() for name, t in results.items()}


def problems(workload: Workload, baseline: Results, reference: Results) -> list[str]:
    """What the check refuses although it is right, and what it lets pass although the case calls it wrong."""

    def refusal(results: Results) -> str:
        try:
            check(results, baseline, reference, workload.largest_summands)
        except AssertionError as error:
            return str(error)
        return ""

    rounded = {result: t.to(baseline[result].dtype) for result, t in reference.items()}
    right = {"the baseline": baseline, "the reference, rounded": rounded}
    found = [f"refuses {what}: {why}" for what, results in right.items() if (why := refusal(results))]
    if len(workload.wrong) < 3:
        found.append(f"names {len(workload.wrong)} wrong results, not three")
    return found + [f"passes: {what}" for what, spoil in workload.wrong.items() if not refusal(spoil(copies(baseline)))]


@pytest.mark.parametrize("name", discover())
def test_what_is_wrong_is_refused_and_what_is_right_passes(name: str, once: Callable, key: Callable) -> None:
    """Each case is remembered by itself, and by what judges it."""
    file = discover()[name]

    def judged() -> CompletedProcess[str]:
        case = load(file)
        found = [f"{point}: {problem}" for point in points(name) for problem in problems(*at(case, point))]
        return CompletedProcess([], bool(found), "\n".join(found), "")

    module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    judges = [Path(each) for each in (__file__, equivalence.__file__, runner.__file__)]
    done = once(key(module, *(judge.read_text(encoding="utf-8") for judge in judges)), judged)
    assert not done.returncode, done.stdout


def way(point: Point) -> tuple[str, frozenset[str], str]:
    """In which way a case makes its inputs there."""
    return point.part, frozenset(point.shape), point.direction


def test_every_case_is_tested_in_every_direction() -> None:
    missing = []
    for name, path in discover().items():
        tested = {way(point) for point in points(name)}
        needed = [point for device in (CPU, torch.device("cuda")) for point in load(path).points(device)]
        missing += [f"{name}: {each}" for each in needed if way(each) not in tested]
    assert not missing, "not in the check_at of their cases:\n" + "\n".join(missing)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("kernels/rms-norm", {"batch": 1, "tokens": 512, "width": 256}),
        ("first-speedup", {"width": 256, "heads": 2, "batch": 1, "tokens": 512}),
    ],
)
def test_every_part_of_a_block_matters_by_far(name: str, shape: dict[str, int]) -> None:
    """Also where there are many tokens, over which attention is a mean if the weights are small."""
    workload, baseline, reference = at(load(discover()[name]), Point(shape, "bfloat16"))
    for what, spoil in workload.wrong.items():
        agreement = compare(spoil(copies(baseline))["output"], baseline["output"], reference["output"])
        assert agreement.rms > 4 * agreement.rms_bound, what


def test_fewer_than_three_and_one_that_is_right_are_found() -> None:
    case = load(discover()["kernels/rms-norm"])
    workload, baseline, reference = at(case, Point(ROWS, "bfloat16"))
    some: Mapping = dict(list(workload.wrong.items())[:2])
    assert problems(replace(workload, wrong=some), baseline, reference) == ["names 2 wrong results, not three"]
    right = {"nothing": lambda results: results}
    assert problems(replace(workload, wrong=workload.wrong | right), baseline, reference) == ["passes: nothing"]
