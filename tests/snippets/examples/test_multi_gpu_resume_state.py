"""A state that was saved is read back, bit for bit, with its step."""

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from snippets.examples.multi_gpu_resume_state import load, made, same, state_of


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_state_is_read_back_with_its_step(tmp_path: Path) -> None:
    model, optimizer = made(torch.device("cpu"))
    model(torch.ones(1, 16)).sum().backward()
    optimizer.step()
    dcp.save(state_of(model, optimizer, 5), checkpoint_id=tmp_path)
    fresh, its_optimizer = made(torch.device("cpu"))
    assert not same(fresh.state_dict(), model.state_dict())
    assert load(fresh, its_optimizer, tmp_path) == 5
    assert same(fresh.state_dict(), model.state_dict())
    assert same(its_optimizer.state_dict()["state"], optimizer.state_dict()["state"])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("cleared", (False, True))
def test_beside_gradients_moments_are_lost(tmp_path: Path, cleared: bool) -> None:
    """The page says so. Fixed in PyTorch? Then its warning goes."""
    model, optimizer = made(torch.device("cpu"))
    model(torch.ones(1, 16)).sum().backward()
    optimizer.step()
    dcp.save(state_of(model, optimizer, 5), checkpoint_id=tmp_path)
    fresh, its_optimizer = made(torch.device("cpu"))
    fresh(torch.ones(1, 16)).sum().backward()
    if cleared:
        its_optimizer.zero_grad()
    load(fresh, its_optimizer, tmp_path)
    assert bool(its_optimizer.state_dict()["state"]) == cleared


def test_one_number_makes_states_differ() -> None:
    state = {"a": {"b": torch.zeros(3)}, "step": 1}
    assert same(state, {"a": {"b": torch.zeros(3)}, "step": 1})
    assert not same(state, {"a": {"b": torch.tensor([0, 0, 1e-30])}, "step": 1})
    assert not same(state, {"a": {"b": torch.zeros(3)}, "step": 2}) and not same(state, {"a": state["a"]})
