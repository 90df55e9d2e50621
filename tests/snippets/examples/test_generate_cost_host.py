"""Parts and causes add up to the time, and nothing stays patched."""

import functools

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import generate_cost_host, generation

PROMPT = torch.arange(1, 9)


@functools.cache
def model() -> nn.Module:
    torch.manual_seed(0)
    return generation.make_model(generation.TINY, torch.device("cpu"), torch.float32)


def test_parts_of_generate_add_up_and_its_methods_come_back() -> None:
    before = type(model()).__call__, model().prepare_inputs_for_generation
    tokens = []
    spent = generate_cost_host.by_part(model(), lambda: tokens.append(generation.by_library(model(), PROMPT, 6)), False)
    assert tokens == [generation.by_library(model(), PROMPT, 6)]
    assert (type(model()).__call__, model().prepare_inputs_for_generation) == before
    assert list(spent) == ["prepare inputs", "forward", "choose, stop and the rest"]
    assert all(each > 0 for each in spent.values()) and spent["forward"] > spent["prepare inputs"]


def test_causes_add_up_to_the_time() -> None:
    x = torch.randn(300, 300)
    spent = generate_cost_host.profiled(lambda: [x @ x for _ in range(20)])
    assert spent["operators"] > 0 and spent["launches"] == spent["GPU busy"] == 0
    assert spent["Python"] > 0


def test_a_token_costs_what_the_others_add() -> None:
    assert generate_cost_host.per_token(lambda new: {"ms": 5.0 + 2.0 * new, "launches": 3.0 * new}, 9) == {
        "ms": 2.0,
        "launches": 3.0,
    }
