"""What generate() costs: each cause is counted once, the library's tokens stay, and nothing of it stays patched."""

import functools

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import generate_cost, generation

PROMPT = torch.arange(1, 9)


@functools.cache
def model() -> nn.Module:
    torch.manual_seed(0)
    return generation.make_model(generation.TINY, torch.device("cpu"), torch.float32)


def test_a_static_cache_answers_as_generate_does() -> None:
    inputs = {"input_ids": PROMPT[None], "attention_mask": torch.ones(1, 8, dtype=torch.long)}
    found = generate_cost.answered(model(), inputs, 6)[0, 8:].tolist()
    expected = generation.by_library(model(), PROMPT, 6)
    stop = model().generation_config.eos_token_id
    assert found == (expected[: expected.index(stop) + 1] if stop in expected else expected)


def test_parts_of_generate_add_up_and_its_methods_come_back() -> None:
    before = type(model()).__call__, model().prepare_inputs_for_generation
    tokens = []
    spent = generate_cost.by_part(model(), lambda: tokens.append(generation.by_library(model(), PROMPT, 6)), False)
    assert tokens == [generation.by_library(model(), PROMPT, 6)]
    assert (type(model()).__call__, model().prepare_inputs_for_generation) == before
    assert list(spent) == ["prepare inputs", "forward", "choose, stop and the rest"]
    assert all(each > 0 for each in spent.values()) and spent["forward"] > spent["prepare inputs"]


def test_causes_add_up_to_the_time() -> None:
    x = torch.randn(300, 300)
    spent = generate_cost.profiled(lambda: [x @ x for _ in range(20)])
    assert spent["operators"] > 0 and spent["launches"] == spent["GPU busy"] == 0
    assert spent["Python"] > 0


def test_a_token_costs_what_the_others_add() -> None:
    assert generate_cost.per_token(lambda new: {"ms": 5.0 + 2.0 * new, "launches": 3.0 * new}, 9) == {
        "ms": 2.0,
        "launches": 3.0,
    }


def test_a_prompt_s_first_token_is_the_library_s(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate_cost.first_token(model(), PROMPT[None]).tolist() == generation.by_library(model(), PROMPT, 1)
    monkeypatch.setattr(generate_cost, "MOST", 16)
    generate_cost.prefill(model(), (1, 2), (8, 16))
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].endswith("not run, more than 16 tokens") and all("TFLOP/s" in line for line in lines[:3])


def test_each_grad_mode_compiles_anew(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Captured as always; Inductor would take seconds."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    generate_cost.modes(model(), 8)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["grad", "no_grad", "inference_mode"]
    assert all(", 1 graph, then" in line for line in lines)
