"""What is kept, and what lets go of it."""

import re

from tests.snippets.compiler.test_debugging_symptoms import sections


def test_what_is_kept_and_what_lets_go_of_it(script):
    counts = re.findall(r": (\d+ graphs|its weights are \w+)", sections(script)["growth"])
    assert counts == [
        "1 graphs", "8 graphs", "8 graphs", "8 graphs", "0 graphs", "4 graphs", "0 graphs", "its weights are gone",
    ]  # fmt: skip
