"""Each pitfall shows its symptom, and its mend takes the symptom away."""

import pytest
import torch

from snippets.reference import common_pitfalls_graphs, common_pitfalls_strides
from snippets.reference import common_pitfalls_in_use as pitfalls
from snippets.reference.common_pitfalls_breaks import make_x, reason
from snippets.reference.common_pitfalls_in_use import SYMPTOMS, Positions
from snippets.reference.common_pitfalls_strides import doubled

SEEN = {
    "thrown away": "0 graphs compiled",
    "first call": "within the ten timed calls: 1 compiled",
    "other method": "0 graphs compiled",
    "prefix": 'Unexpected key(s) in state_dict: "_orig_mod.linear.weight", "_orig_mod.linear.bias".',
    "late mark": "2 graphs compiled",
    "in a loop": "8 graphs compiled",
    "inference": "RuntimeError: Inference tensors cannot be saved for backward.",
    "dropout": "other numbers than eager, from the same seed",
    "mask": "Dynamic shape operator",
    "strides": "numbers in other places, and no error",
}
MENDED = {
    "thrown away": (common_pitfalls_graphs.thrown_away_after, "1 graph compiled"),
    "first call": (common_pitfalls_graphs.first_call_after, "within the ten timed calls: 0 compiled"),
    "other method": (common_pitfalls_graphs.other_method_after, "1 graph compiled"),
    "prefix": (pitfalls.prefix_after, "no error"),
    "late mark": (lambda: common_pitfalls_graphs.late_mark(marked=(3,)), "1 graph compiled"),
    "in a loop": (common_pitfalls_graphs.in_a_loop_after, "1 graph compiled"),
    "inference": (lambda: pitfalls.warmed_up(torch.no_grad), "no error"),
    "dropout": (lambda: pitfalls.dropout(fallback_random=True), "the same numbers"),
    "mask": (lambda: reason(pitfalls.mask_after), "no entry"),
    "strides": (lambda: doubled(common_pitfalls_strides.strides_after), "2 * x"),
}

names = pytest.mark.parametrize("name", SEEN)


def test_there_are_ten():
    assert list(SYMPTOMS) == list(SEEN) == list(MENDED) and len(SEEN) == 10


@names
def test_the_symptom_reads_as_on_the_page(name):
    assert SEEN[name] in SYMPTOMS[name]()


@names
def test_the_mend_takes_it_away(name):
    mended, said = MENDED[name]
    assert mended() == said


def test_eager_code_has_the_pitfall_of_inference_too():
    """It is a pitfall of tensors that are kept, which warming up brings out."""
    module = Positions()
    with torch.inference_mode():
        module(make_x())
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        module(make_x())
