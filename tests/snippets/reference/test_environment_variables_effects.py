"""Each option has the effect that is printed."""

import pytest
import torch

from snippets.reference import environment_variables as snippet
from tests.benchmarks import captures

VERSION = tuple(map(int, torch.__version__.split(".")[:2]))


@pytest.fixture(scope="module")
def printed(script) -> dict[str, str]:
    done = script(snippet.__name__)
    assert not done.returncode, done.stderr
    return {section: text.strip() for section, text in captures.sections(done.stdout).items()}


EFFECTS = {
    "disable": ("1 graph compiled", "0 graphs compiled"),
    "allow_rnn": ("0 graphs compiled", "1 graph compiled"),
    "force_non_lazy_backward_lowering": ("1 compiled after forward", "2 compiled after forward"),
    "suppress_errors": ("BackendCompilerFailed", "no error, and the function runs eagerly"),
    "fallback_random": ("other numbers than eager, from the same seed", "eager's numbers"),
    "emulate_precision_casts": ("differs from eager in the last bits", "bit for bit eager's"),
    "nan_asserts": ("no error", "AssertionError"),
    "enable_autograd_cache": ("autograd cache hit, fx cache hit", "fx cache hit"),
    "fx_graph_cache": ("fx cache hit", "no hit"),
    "force_disable_caches": ("autograd cache hit, fx cache hit", "no hit"),
}


@pytest.mark.parametrize("name", EFFECTS)
def test_an_option_has_its_effect(printed, name):
    if name == "emulate_precision_casts" and VERSION < (2, 13):
        pytest.skip("on a CPU only from torch 2.13 on")
    assert tuple(line.partition(": ")[2] for line in printed[name].splitlines()) == EFFECTS[name]
