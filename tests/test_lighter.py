"""What is left out on the way changes nothing that a compiler makes."""

import copy

import pytest
import torch
from torch._dynamo import bytecode_transformation
from torch._dynamo.bytecode_transformation import Instruction, cleaned_instructions

from tests.lighter import lighten


@pytest.fixture(autouse=True, scope="module")
def light() -> None:
    lighten()  # where no test before has imported Dynamo


def loops(values):
    try:
        for value in values:
            with torch.no_grad():
                print(value if value else "nothing")
    except ValueError:
        return None


def told(instructions: list[Instruction]) -> list[list]:
    """All that instructions say, with others by their place among them."""
    places = {id(instruction): place for place, instruction in enumerate(instructions)}

    def said(value: object) -> object:
        if isinstance(value, bytecode_transformation.InstructionExnTabEntry):
            return [said(getattr(value, name)) for name in ("start", "end", "target", "depth", "lasti")]
        return places[id(value)] if isinstance(value, Instruction) else value

    return [[said(getattr(one, name)) for name in Instruction.__slots__] for one in instructions]


def test_copied_instructions_are_those_of_a_deep_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no instruction is in both."""
    given = cleaned_instructions(loops.__code__)
    found = copy.deepcopy(given)
    assert not {*map(id, given)} & {*map(id, found)}
    monkeypatch.delattr(Instruction, "__deepcopy__")
    assert told(found) == told(copy.deepcopy(given)) == told(given)
    assert any(one.target for one in found) and any(one.exn_tab_entry for one in found)


def test_instructions_are_told_apart_by_identity() -> None:
    one, *_ = cleaned_instructions(loops.__code__)
    other = copy.copy(one)
    assert one == one and one != other and len({one, other, one}) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is told its seeds")
def test_a_seed_is_noted_without_the_place_where_it_was_set() -> None:
    torch.manual_seed(7)
    first = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(first, torch.rand(3))
    _, place = next(filter(None, torch.cuda._lazy_seed_tracker.get_calls()))
    assert place == []
