"""Keys and values are projected once."""

from tests.snippets.start.test_your_model import both, counted


def test_keys_and_values_are_not_projected_again() -> None:
    def rows(call) -> int:
        return counted(call).counts["mm"]

    before, after = both("encoder-decoder")
    assert rows(before) == rows(after) + 2
