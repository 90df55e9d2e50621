"""What cannot be asked for is refused."""

from collections.abc import Callable

import pytest

from snippets.examples.large_models_change import Change


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Change(states="int3"), "states: expected one of"),
        (lambda: Change(repeat="all"), "repeat: expected"),
        (lambda: Change(rows=-1), "rows: expected 0 or more"),
        (lambda: Change(rows=8, fused=True), "fused: expected no rows"),
        (lambda: Change(budget=0.9, offload=True), "budget: expected no repeat"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make: Callable, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
