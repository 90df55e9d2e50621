"""How long a page takes to read."""

import pytest

from docs.publish.markdown import reading

PROSE = "word " * 1000  # five minutes


@pytest.mark.parametrize(
    "around",
    [
        "{words}",
        "`2 <= n` {words} `n > 2`",
        "{{% if a <= b %}} {words} {{{{ 'b' if a > b }}}}",
        "{words} <figure class='a' {{{{ gpu('a', 'b > c') }}}}></figure>",
    ],
)
def test_all_prose_counts_and_nothing_else(around: str):
    assert reading.minutes(around.format(words=PROSE)) == 5
