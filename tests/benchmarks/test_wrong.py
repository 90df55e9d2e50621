"""Every case names results that its check must refuse: in fp32 and bf16 each is refused, and what is right passes."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from snippets.validation.equivalence import check, compare
from tests.benchmarks.case import Case, Point, Results, Workload
from tests.benchmarks.runner import discover, load

CPU = torch.device("cpu")
ROWS = {"rows": 64, "columns": 1024}
BLOCK = {"batch": 1, "tokens": 64, "width": 256}
LONGER = BLOCK | {"tokens": 512}  # for dropout: what chance leaves falls with the size
# a small shape for each way in which a case makes its inputs, with the directions that it is measured in
SHAPES: dict[str, list[tuple[dict[str, int], str]]] = {
    "compiler/ahead-of-time": [({"batch": 2, "tokens": 16, "width": 64, "layers": 2}, "forward")],
    "compiler/custom-kernels": [
        ({family: number, "rows": 16, "columns": 1024}, "forward") for family, number in (("called", 2), ("block", 1))
    ],
    "compiler/graph-breaks": [({"rows": 64, "width": 256}, "forward")],
    "compiler/recompilation": [({"batch": 2, "length": 20, "width": 256}, "forward")],
    "compiler/fusion": [
        *(({"step": step} | ROWS, "forward") for step in (1, 3, 8)),
        ({"window": 4} | ROWS, "forward"),
        ({"together": 4} | ROWS, "forward"),
    ],
    "compiler/modes": [
        ({"mlp": 2, "rows": 32, "width": 128}, "forward"),
        ({"block": 1, "batch": 2, "tokens": 32, "width": 128}, "forward"),
        ({"decode": 2, "batch": 2, "cached": 64, "width": 128}, "forward"),
        ({"norms": 2} | ROWS, "forward"),
        ({"convolution": 2, "batch": 2, "channels": 16, "side": 8}, "forward"),
    ],
    "compiler/torchscript": [
        *(({"component": number} | ROWS, "forward") for number in (3, 4)),
        *(({"component": number} | ROWS, "forward both") for number in (1, 2)),
        ({"component": 5, "rows": 64, "columns": 256}, "forward both"),
    ],
    "compiler/training": [({"layers": 1, "width": 128, "vocabulary": 256, "rows": 2, "length": 32}, "both")],
    "compiler/what-compile-does": [
        ({"operations": 6} | ROWS, "forward both"),
        ({"operations": 1} | ROWS, "forward"),
    ],
    "examples/first-optimized-module": [
        ({"batch": 64, "steps": 64, "width": 64} | how, "forward") for how in ({}, {"unrolled": 64}, {"packaged": 1})
    ],
    "examples/llama": [
        ({"batch": 2, "tokens": 64, "layers": 2, "width": 64, "vocabulary": 256}, "both"),
        ({"batch": 2, "tokens": 64, "layers": 2, "width": 64, "vocabulary": 256, "traced": 1}, "both"),
        ({"batch": 1, "tokens": 256, "heads": 4, "kv_heads": 2, "head_dim": 64}, "both"),
    ],
    "examples/llama-flash4": [({"batch": 2, "tokens": 64, "layers": 2, "width": 64, "vocabulary": 256}, "both")],
    "first-speedup": [({"width": 256, "heads": 2, "batch": 1, "tokens": 64}, "forward")],
    "kernels/add-rms-norm": [(ROWS, "forward backward both"), (BLOCK, "forward both")],
    "kernels/cross-entropy": [
        (ROWS, "forward both"),
        (ROWS | {"parts": 8}, "both"),
        (ROWS | {"losses": 2}, "both"),
        (BLOCK | {"vocabulary": 1024}, "forward both"),
    ],
    "kernels/first-kernel": [(ROWS, "forward both"), (ROWS | {"apart": 2048}, "forward")],
    "kernels/layer-norm": [(ROWS, "forward backward both"), (BLOCK, "forward both")],
    "kernels/layer-norm-gelu": [(ROWS, "forward backward both"), (BLOCK, "forward both")],
    "kernels/rms-norm": [(ROWS, "forward backward both"), (BLOCK, "forward both")],
    "kernels/rope": [
        ({"batch": 2, "tokens": 1, "heads": 4, "kv_heads": 2, "head_dim": 64}, "forward backward both"),
        ({"batch": 1, "tokens": 64, "heads": 4, "kv_heads": 2, "head_dim": 64, "contiguous": 1}, "forward backward"),
        (BLOCK, "forward both"),
    ],
    "kernels/softmax": [(ROWS, "forward backward both"), (BLOCK, "forward both")],
    "kernels/softmax-dropout": [(ROWS, "forward backward both"), (LONGER, "both"), (LONGER | {"cap": 30}, "both")],
    "kernels/swiglu": [
        (ROWS, "forward backward both"),
        (ROWS | {"tanh": 0}, "forward backward"),
        (ROWS | {"tanh": 1}, "forward backward"),
        ({"rows": 64, "halves": 2, "columns": 1024}, "forward backward"),
        (BLOCK, "forward both"),
        ({"tokens": 64, "width": 256, "hidden": 896}, "both"),
    ],
    "patterns/activations": [({"component": number} | ROWS, "forward both") for number in (1, 2, 3, 4, 5)],
    "patterns/attention": [({"tokens": 256, "width": 256, "heads": 2}, "forward")],
    "patterns/attention-choose": [
        *(({"mask": mask, "rows": 2, "tokens": 128, "heads": 8}, "forward both") for mask in range(1, 7)),
        ({"mask": 7, "rows": 2, "tokens": 128, "heads": 8}, "forward"),
    ],
    "patterns/attention-padding": [
        ({"rows": 4, "tokens": 96, "heads": 2, "causal": causal}, "forward both") for causal in (1, 0)
    ],
    "patterns/compute-intensity": [
        *(({"decode": number, "rows": 4, "inner": 512, "columns": 256}, "forward") for number in (1, 2)),
        ({"merged": 3, "rows": 16, "columns": 256}, "forward"),
        ({"wide": 64, "rows": 256}, "forward"),
    ],
    "patterns/fusion": [
        *(({family: number} | ROWS, "forward") for family, number in (("vertical", 1), ("vertical", 2))),
        *(({family: 4} | ROWS, "forward") for family in ("horizontal", "independent")),
        ({"epilogue": 256} | ROWS, "forward"),
        ({"recomputed": 1} | ROWS, "both"),
        *(({"block": number, "batch": 2, "channels": 64, "side": 8}, "forward") for number in (1, 3)),
        ({"block": 2, "batch": 2, "tokens": 32, "width": 128}, "forward"),
    ],
    "patterns/embeddings": [
        *(
            ({"component": number, "batch": 2, "tokens": 64, "vocabulary": 128, "width": 64}, "forward both")
            for number in (1, 2)
        ),
        (
            {"component": 3, "batch": 2, "tokens": 16, "heads": 4, "kv_heads": 2, "head_dim": 64},
            "forward both",
        ),
        *(({"update": number, "tokens": 64, "vocabulary": 128, "width": 64}, "both") for number in (1, 2)),
        ({"tied": 1, "tokens": 64, "vocabulary": 128, "width": 64}, "both"),
    ],
    "patterns/linear": [
        *(({"component": number, "tokens": 64, "width": 256}, "forward both") for number in (1, 3)),
        ({"component": 2, "tokens": 64, "width": 128, "hidden": 256}, "forward both"),
        ({"component": 4, "batch": 4, "rows": 32, "width": 64}, "forward both"),
        ({"component": 5, "experts": 4, "tokens": 128, "width": 64, "hidden": 96}, "forward both"),
        ({"layout": 1, "rows": 64, "inner": 128, "columns": 256}, "forward"),
        ({"odd": 1, "rows": 64, "inner": 95, "columns": 250}, "both"),
    ],
    "patterns/memory": [
        ({"copied": 1, "batch": 2, "tokens": 16, "heads": 4, "head_dim": 64}, "forward"),
        ({"product": 1, "rows": 64, "inner": 128, "columns": 256}, "forward"),
        ({"changed": 3} | ROWS, "forward"),
        ({"appended": 64, "columns": 256}, "forward"),
        ({"convolution": 3, "batch": 2, "channels": 64, "side": 8}, "forward both"),
        ({"block": 1, "batch": 2, "channels": 64, "side": 8}, "forward"),
    ],
    "patterns/mixed-precision": [
        *(({"product": number} | ROWS, "forward") for number in (1, 4, 5, 6)),
        *(({"step": number, "rows": 2, "length": 32, "width": 64}, "both") for number in (1, 3, 4, 5)),
    ],
    "patterns/compiler-friendly": [({"rewrite": number, "rows": 8, "width": 16}, "forward") for number in range(1, 11)],
    "patterns/normalization": [({"component": number} | ROWS, "forward both") for number in (1, 2, 3)],
    "patterns/softmax-and-loss": [
        *(({"component": number} | ROWS, "forward both") for number in (1, 2)),
        ({"component": 3, "rows": 64, "vocabulary": 1024}, "forward both"),
    ],
    "patterns/transformer-block": [
        ({"component": 1, "batch": 1, "tokens": 32, "width": 256}, "forward both"),
        *(({"part": number, "batch": 1, "tokens": 32, "width": 256}, "forward both") for number in range(2, 8)),
    ],
    "validation/memory": [({"layers": 2, "width": 64, "vocabulary": 512, "rows": 2, "length": 64}, "both")],
    "validation/equivalence": [({"rows": 8, "columns": 32768}, "forward")],
    "validation/roofline": [({"elements": 4096}, "forward"), ({"rows": 8, "inner": 1024, "columns": 1024}, "forward")],
    "validation/timing": [
        ({"kernels": 1, "elements": 4096}, "forward"),
        ({"size": 256, "random": 1}, "forward"),
        ({"size": 256, "random": 0}, "forward"),
    ],
}


def points(name: str) -> list[Point]:
    """The points at which a case is tested."""
    return [
        Point(shape, dtype, direction)
        for shape, directions in SHAPES[name]
        for direction in directions.split()
        for dtype in ("float32", "bfloat16")
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


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_wrong_is_refused_and_what_is_right_passes(name: str) -> None:
    case = load(discover()[name])
    found = [f"{point}: {problem}" for point in points(name) for problem in problems(*at(case, point))]
    assert not found, "\n".join(found)


def test_every_case_is_tested_in_every_direction() -> None:
    assert SHAPES.keys() == discover().keys()
    missing = []
    for name, path in discover().items():
        tested = {(frozenset(point.shape), point.direction) for point in points(name)}
        needed = [point for device in (CPU, torch.device("cuda")) for point in load(path).points(device)]
        missing += [f"{name}: {each}" for each in needed if (frozenset(each.shape), each.direction) not in tested]
    assert not missing, "\n".join(missing)


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
