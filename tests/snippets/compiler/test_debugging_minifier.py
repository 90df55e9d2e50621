"""What the minifier is left with."""

import re

from tests.snippets.compiler.test_debugging_symptoms import sections


def test_the_minifier_is_left_with_the_planted_operator_and_what_shows_it(script):
    ended, _, graph = sections(script)["minifier"].partition("\n\n")
    assert ended == "AccuracyError: Bad accuracy detected"
    calls = re.findall(r"torch\.ops\.(\S+)\(", graph)
    assert "planted.shifted.default" in calls and len(calls) <= 3
