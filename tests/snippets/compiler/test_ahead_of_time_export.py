"""What export refuses, that what is written instead computes the same, and what it makes constant without a word."""

from snippets.compiler import ahead_of_time_export as page
from snippets.compiler.ahead_of_time_export_batch import Asked
from snippets.compiler.ahead_of_time_export_refused import words


def test_each_mode_refuses_something_that_the_other_exports():
    said = {
        what: [words(Asked(module, strict=strict)) for strict in (False, True)] for what, module in page.MODES.items()
    }
    lenient = ("random.random()", "time.time()", "json.loads(text)", "try: x.view(3, 3)")
    for what in lenient:
        assert said[what][0] == "exported" != said[what][1]
    assert said["x.numpy()"][0] != "exported" == said["x.numpy()"][1]
    assert "exported" not in said["if x.sum() > 0"]
