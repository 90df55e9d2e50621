"""Static caches answer as generate() does, and each grad mode compiles anew."""

import functools

import pytest
import torch

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import generate_cost, generation
from tests.snippets.examples.test_generate_cost_host import PROMPT, model


def test_a_static_cache_answers_as_generate_does() -> None:
    inputs = {"input_ids": PROMPT[None], "attention_mask": torch.ones(1, 8, dtype=torch.long)}
    found = generate_cost.answered(model(), inputs, 6)[0, 8:].tolist()
    expected = generation.by_library(model(), PROMPT, 6)
    stop = model().generation_config.eos_token_id
    assert found == (expected[: expected.index(stop) + 1] if stop in expected else expected)


def test_each_grad_mode_compiles_anew(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Captured as always; Inductor would take seconds."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    generate_cost.modes(model(), 8)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["grad", "no_grad", "inference_mode"]
    assert all(", 1 graph, then" in line for line in lines)
