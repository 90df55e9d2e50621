"""The prefix of a compiled model, and that each of the three ways around it gives the weights back."""

import pytest
import torch
from torch import nn

from snippets.compiler.ahead_of_time_checkpoints import in_place, make_model, mended, silenced, state_to_save, symptom


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def same(model: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(*both) for both in zip(model.parameters(), other.parameters(), strict=True))


def test_the_symptom_is_the_prefix():
    assert "Unexpected key(s)" in symptom() and '"_orig_mod.0.weight"' in symptom()
    assert silenced() == "missing 4 of 4, no error; the weights are as they were"


def test_compiled_in_place_the_names_stay():
    model, fresh = in_place(make_model()), make_model()
    fresh.load_state_dict(model.state_dict())
    assert same(model, fresh)


@pytest.mark.parametrize("compiled", [True, False])
def test_what_is_saved_has_no_prefix(compiled):
    model, fresh = make_model(), make_model()
    fresh.load_state_dict(state_to_save(torch.compile(model) if compiled else model))
    assert same(model, fresh)


@pytest.mark.parametrize("part", ["whole", "a layer", "none"])
def test_an_old_checkpoint_is_mended_wherever_the_prefix_stands(part):
    model, fresh = make_model(), make_model()
    expected = [value.clone() for value in model.parameters()]
    if part == "whole":
        model = torch.compile(model)
    elif part == "a layer":
        model[0] = torch.compile(model[0])
    assert any("_orig_mod." in name for name in model.state_dict()) == (part != "none")
    fresh.load_state_dict(mended(model.state_dict()))
    assert all(torch.equal(*both) for both in zip(expected, fresh.parameters(), strict=True))


def test_pytorchs_own_helper_takes_the_prefix_from_the_front_only():
    """Why `mended` replaces it instead."""
    model = make_model()
    model[0] = torch.compile(model[0])
    state = model.state_dict()
    nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "_orig_mod.")
    assert "0._orig_mod.weight" in state
