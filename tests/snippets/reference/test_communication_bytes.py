"""Each strategy's formula is what its collectives send, on two ranks and on four."""

from pathlib import Path

import pytest

from snippets.reference import communication_bytes as snippet
from tests.snippets.reference.ranks import on_ranks

MODULE = "snippets.reference.communication_bytes"
STRATEGIES = {
    "DDP", "FSDP2, reshard None", "FSDP2, reshard True", "FSDP2, reshard False", "HSDP", "tensor",
    "tensor, inputs unprepared", "sequence", "context",
}  # fmt: skip


def rows(printed: str) -> list[tuple[str, str, int, int]]:
    """(strategy, operation, formula, counted) of each line."""
    found, name = [], ""
    for line in printed.splitlines()[2:]:
        name = line[:27].strip() or name
        operation, formula, counted, _ = line[27:].split()
        found.append((name, operation, int(formula), int(counted)))
    return found


def check(printed: str, strategies: set[str]) -> None:
    found = rows(printed)
    assert {name for name, *_ in found} == strategies
    assert not [each for each in found if each[2] != each[3]]
    assert all(formula > 0 for name, _, formula, _ in found if name != "HSDP")


def test_formulas_are_exact_on_four_ranks(script) -> None:
    done = script(MODULE)
    assert done.returncode == 0, done.stderr
    check(done.stdout, STRATEGIES | {"FSDP2, reshard 2"})


def two() -> str:
    """All strategies on two ranks."""
    return snippet.report(2)


def test_formulas_are_exact_on_two_ranks(tmp_path: Path) -> None:
    check(on_ranks(two, 2, tmp_path)[0], STRATEGIES)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (snippet.ddp(1000, 4), {"all-reduce": 6000}),
        (snippet.fsdp2(800, 200, 4), {"all-gather": 2700, "reduce-scatter": 3000}),
        (snippet.fsdp2(800, 200, 4, reshard=False), {"all-gather": 1500, "reduce-scatter": 3000}),
        (snippet.fsdp2(800, 200, 4, reshard=2), {"all-gather": 2500, "reduce-scatter": 3000}),
        (snippet.hsdp(800, 200, 2, 4), {"all-gather": 2700, "reduce-scatter": 3000, "all-reduce": 1000}),
        (snippet.tensor_parallel(100, 2, 4), {"all-reduce": 1200}),
    ],
)
def test_formulas_by_hand(found: dict[str, float], expected: dict[str, float]) -> None:
    assert found == expected
