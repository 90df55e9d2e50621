"""The prefix of a compiled model, and that each of the three ways around it gives the weights back."""

from pathlib import Path

import pytest
import torch
from torch import nn

from snippets.compiler.ahead_of_time_checkpoints import (
    in_place,
    loaded,
    make_model,
    mended,
    silenced,
    state_to_save,
    symptom,
)


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


class Part(nn.Module):
    """Has a buffer that no checkpoint holds."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("table", torch.arange(4.0), persistent=False)


def test_loaded_weights_are_the_files_and_no_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model, load, read = make_model(), torch.load, []
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    monkeypatch.setattr(torch, "load", lambda *args, **how: read.append(load(*args, **how)) or read[-1])
    again = loaded(make_model, tmp_path / "weights.pt")
    assert same(again, model) and all(weight.requires_grad for weight in again.parameters())
    assert {name: value.data_ptr() for name, value in again.state_dict().items()} == {
        name: value.data_ptr() for name, value in read[0].items()
    }
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(tmp_path / "weights.pt") in maps.read_text(), "expected the file to be mapped"


def test_a_buffer_that_the_checkpoint_lacks_stays_on_meta(tmp_path: Path):
    torch.save(Part().state_dict(), tmp_path / "weights.pt")
    part = loaded(Part, tmp_path / "weights.pt")
    assert (part.weight.device.type, part.table.device.type) == ("cpu", "meta")


def test_tied_weights_become_two_parameters(tmp_path: Path):
    def tied() -> nn.Module:
        model = nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 4, bias=False))
        model[1].weight = model[0].weight
        return model

    torch.save(tied().state_dict(), tmp_path / "tied.pt")
    embedding, head = loaded(tied, tmp_path / "tied.pt")
    assert embedding.weight is not head.weight and torch.equal(embedding.weight, head.weight)
