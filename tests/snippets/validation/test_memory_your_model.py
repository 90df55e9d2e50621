"""The recipe counts a step of a model that is not this site's, and says where the most is."""


def test_the_recipe_prints_the_peak_and_what_is_saved(script):
    done = script("snippets.validation.memory_your_model")
    assert done.returncode == 0, done.stderr
    peak, kept = done.stdout.split("\n\n")
    assert peak.startswith("peak ") and "forward of 0.self_attn" in peak
    parameters = 4 * (4 * 1024 * 1024 + 2 * 4 * 1024 * 1024 + (4 + 4 + 1 + 4) * 1024)
    assert f"{2 * 4 * parameters / 1e6:,.1f}" in peak  # the optimizer's state, besides each parameter's count of steps
    assert kept.splitlines()[-1].endswith("in all")
