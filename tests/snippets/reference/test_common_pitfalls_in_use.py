"""Each pitfall shows its symptom, and its mend takes the symptom away."""

import pytest
import torch
from torch import nn

from snippets.reference import common_pitfalls_in_use as pitfalls
from snippets.reference.common_pitfalls import make_x, reason
from snippets.reference.common_pitfalls_in_use import SYMPTOMS, Counter, Generator, Positions, doubled, strides_before

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
    "thrown away": (pitfalls.thrown_away_after, "1 graph compiled"),
    "first call": (pitfalls.first_call_after, "within the ten timed calls: 0 compiled"),
    "other method": (pitfalls.other_method_after, "1 graph compiled"),
    "prefix": (pitfalls.prefix_after, "no error"),
    "late mark": (lambda: pitfalls.late_mark(marked=(3,)), "1 graph compiled"),
    "in a loop": (pitfalls.in_a_loop_after, "1 graph compiled"),
    "inference": (lambda: pitfalls.warmed_up(torch.no_grad), "no error"),
    "dropout": (lambda: pitfalls.dropout(fallback_random=True), "the same numbers"),
    "mask": (lambda: reason(pitfalls.mask_after), "no entry"),
    "strides": (lambda: doubled(pitfalls.strides_after), "2 * x"),
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


def test_a_compiled_module_saves_the_same_weights_under_other_names():
    model = Generator()
    fast = torch.compile(model, backend="eager")
    assert [name.removeprefix("_orig_mod.") for name in fast.state_dict()] == list(model.state_dict())
    assert list(fast._orig_mod.state_dict()) == list(model.state_dict())


def test_the_limit_of_graphs_is_what_ends_the_loop():
    """Past it the functions run eagerly: the limit is counted, not the steps."""
    with torch._dynamo.config.patch(recompile_limit=5):
        assert SYMPTOMS["in a loop"]() == "5 graphs compiled"


def test_eager_code_has_the_pitfall_of_inference_too():
    """It is a pitfall of tensors that are kept, which warming up brings out."""
    module = Positions()
    with torch.inference_mode():
        module(make_x())
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        module(make_x())


def test_a_module_compiled_in_place_is_still_an_instance_of_its_class():
    backend, model = Counter(), Generator()
    model.compile(backend=backend)
    assert type(model) is Generator and isinstance(torch.compile(model), nn.Module)
    assert type(torch.compile(model)) is not Generator


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's tensors are on the CPU")
def test_the_kernel_is_right_where_the_layout_is_as_it_assumes():
    assert torch.equal(strides_before(make_x()), 2 * make_x())
