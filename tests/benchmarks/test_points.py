"""A point's shape holds sizes, what runs there is said in words, and no two points have one name."""

from collections.abc import Iterable

import pytest
import torch

from tests.benchmarks.case import Point
from tests.benchmarks.runner import discover, label, load

READ = "tests/benchmarks", "snippets/**/*.py"  # by what finds the cases

SIZES = {
    "apart", "batch", "cached", "channels", "columns", "context", "elements", "experts", "head_dim", "heads",
    "hidden", "inner", "kernels", "kv_heads", "layers", "length", "operations", "rows", "side", "size", "steps",
    "tensors", "tokens", "vocabulary", "width", "window",
}  # fmt: skip


def problems(points: Iterable[Point]) -> list[str]:
    """What is no size, and points that their label does not tell apart."""
    found, seen = [], set()
    for point in points:
        found += [f"{label(point)}: {name} is no size" for name in point.shape.keys() - SIZES]
        named = {f"{label(point)} {mode} {variant}" for mode in point.modes for variant in point.variants or ["all"]}
        named |= {f"the name {point.name!r}"} if point.name else set()
        found += [f"{name} twice" for name in sorted(named & seen)]
        seen |= named
    return found


@pytest.mark.parametrize("name", discover())
def test_shapes_hold_sizes_and_labels_tell_points_apart(name: str) -> None:
    devices = [torch.device("cpu"), torch.device("cuda")]
    found = [problem for device in devices for problem in problems(load(discover()[name]).points(device))]
    found += [f"check_at: {problem}" for problem in problems(load(discover()[name]).checked())]
    assert not found


def test_a_number_for_what_runs_is_found() -> None:
    silu, gelu = ({"rows": 8, "component": number} for number in (1, 2))
    assert problems([Point(silu, "float32"), Point(gelu, "float32")]) == [
        "forward 8x1 float32: component is no size",
        "forward 8x2 float32: component is no size",
    ]
    assert problems(2 * [Point({"rows": 8}, "float32", part="gelu")]) == ["forward gelu 8 float32 device all twice"]
    assert not problems([Point({"rows": 8}, "float32", part=part) for part in ("gelu", "silu")])
    alike = [Point({"rows": 8}, "float32", part=part, name="small") for part in ("gelu", "silu")]
    assert problems(alike) == ["the name 'small' twice"]
