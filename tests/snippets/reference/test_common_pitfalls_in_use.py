"""Each pitfall shows its symptom, and its mend takes the symptom away."""

import pytest
import torch
from torch import nn

from snippets.reference.common_pitfalls import make_x
from snippets.reference.common_pitfalls_in_use import PITFALLS, Counter, Generator, Positions, strides_before

SYMPTOMS = {
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
    "thrown away": "1 graph compiled",
    "first call": "within the ten timed calls: 0 compiled",
    "other method": "1 graph compiled",
    "late mark": "1 graph compiled",
    "in a loop": "1 graph compiled",
    "dropout": "the same numbers",
    "mask": "no entry",
    "strides": "2 * x",
}

names = pytest.mark.parametrize("name", SYMPTOMS)


def test_there_are_ten():
    assert list(PITFALLS) == list(SYMPTOMS) and len(SYMPTOMS) == 10


@names
def test_the_symptom_reads_as_on_the_page(name):
    assert SYMPTOMS[name] in PITFALLS[name].symptom()


@names
def test_the_mend_takes_it_away(name):
    assert PITFALLS[name].mended() == MENDED.get(name, "no error")


def test_a_compiled_module_saves_the_same_weights_under_other_names():
    model = Generator()
    fast = torch.compile(model, backend="eager")
    assert [name.removeprefix("_orig_mod.") for name in fast.state_dict()] == list(model.state_dict())
    assert list(fast._orig_mod.state_dict()) == list(model.state_dict())


def test_the_limit_of_graphs_is_what_ends_the_loop():
    """Past it the functions run eagerly: the limit is counted, not the steps."""
    with torch._dynamo.config.patch(recompile_limit=5):
        assert PITFALLS["in a loop"].symptom() == "5 graphs compiled"


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
