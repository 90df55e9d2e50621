"""The ways to write a LayerNorm: one is right everywhere, and each of the others fails where the page says so."""

import pytest

from snippets.patterns.normalization_mistakes import (
    ROWS,
    WAYS,
    divides_by_n,
    eps_outside,
    mean_of_squares,
    off,
    said,
    torch_var,
)

VARIES = {"": r"1e-0[67]"}  # rounding that a processor decides: see tests/benchmarks/captures.py


@pytest.mark.parametrize("rows", ROWS)
def test_the_mean_of_squared_distances_is_right(rows: str) -> None:
    assert off(divides_by_n, *ROWS[rows]) < 1e-3


@pytest.mark.parametrize(
    ("way", "right", "wrong"),
    [
        (torch_var, "deviation 1e-3", "8 columns"),
        (eps_outside, "4096 columns", "deviation 1e-3"),
        (mean_of_squares, "4096 columns", "mean 1000"),
    ],
)
def test_each_mistake_shows_in_some_rows_and_not_in_others(way, right: str, wrong: str) -> None:
    assert off(way, *ROWS[wrong]) > 0.03
    assert off(way, *ROWS[right]) < 1e-4


def test_the_script_prints_all(script) -> None:
    lines = script("snippets.patterns.normalization_mistakes").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [way.__name__ for way in WAYS]


def test_an_order_of_magnitude_is_said() -> None:
    assert (said(0.02), said(0.04), said(float("inf"))) == ("1e-02", "1e-01", "nan")
