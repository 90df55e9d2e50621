"""examples/speculative_decoding_trained: what it trains on, and that each number it prints counts what it says."""

import pytest
import torch

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import speculative_decoding_models
from snippets.examples import speculative_decoding_trained as script
from snippets.examples.generation import by_library
from snippets.examples.generation_step import Decoder
from snippets.examples.speculative_decoding_drafts import DraftModel
from tests.snippets.examples.test_generation import model
from tests.snippets.examples.test_speculative_decoding_models import pieces


def test_following_gives_the_library_s_tokens_and_logits() -> None:
    tokens, logits = script.followed(Decoder(model(), 2, 20), pieces(), 8)
    for row, prompt in zip(tokens.tolist(), pieces(), strict=True):
        assert row == [*prompt.tolist(), *by_library(model(), prompt, 8)]
    with torch.no_grad():
        torch.testing.assert_close(logits, model()(pieces()).logits, rtol=1e-3, atol=1e-4)


def test_equal_weights_have_no_error_and_fewer_bits_have_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "FORMATS", {"same": None, "int8": torch.int8, "int4": torch.uint8})
    _, *lines = script.compared(model(), model(), pieces(), 8)
    same, int8, int4 = (line.split() for line in lines)
    assert same == ["same", "0.0%", "100.0%", "8", "of", "8", "tokens", "2", "of", "2"]
    assert 0 < float(int8[1][:-1]) < float(int4[1][:-1])
    assert float(int4[2][:-1]) < 100


def test_tokens_are_counted_up_to_the_first_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    one = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]])
    other = torch.tensor([[0, 1, 9, 3, 4], [0, 1, 2, 3, 4]])
    found = iter([(one, torch.tensor([[[2.0, 0.0]]])), (other, torch.tensor([[[0.0, 1.0]]]))])
    monkeypatch.setattr(script, "followed", lambda *_: next(found))
    monkeypatch.setattr(script, "FORMATS", {"other": None})
    _, line = script.compared(model(), model(), one[:, :1], 4)  # of four tokens, one and four are equal: 2.5
    assert line.split() == ["other", f"{5**0.5 / 2:.1%}", "0.0%", "2", "of", "4", "tokens", "1", "of", "2"]


def test_the_formula_is_the_sum_of_powers() -> None:
    for a in (0.3, 0.9):
        assert script.by_formula(a) == pytest.approx([(1 - a ** (k + 1)) / (1 - a) - 1 for k in script.AHEAD])


def test_a_prompt_begins_again_after_three_quarters() -> None:
    assert script.repeating(torch.arange(8)[None]).tolist() == [[0, 1, 2, 3, 4, 5, 0, 1]]


def test_each_row_of_acceptance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model drafting for itself is always right; the file as it is repeats itself."""
    monkeypatch.setattr(script, "AHEAD", (1, 3))
    plan = speculative_decoding_models.Plan({}, {}, (0, 0), batch=1, context=1, prompts=2, prompt=12, new=24)
    files = pieces().repeat(1, 3)
    head, *lines = script.drafted(model(), DraftModel(model(), Decoder(model(), 1, 64)), files, plan)
    rows = {line[:35].strip(): list(map(float, line[35:].split())) for line in lines}
    ks = list(script.AHEAD)
    assert head.split() == ["draft", "of", *map(str, ks)]
    assert rows["draft model, the model's answers"] == rows["by the formula"] == ks
    assert rows["n-gram, held-out files as they are"] == pytest.approx(ks, rel=0.2)
    assert rows["n-gram, the model's answers"] != rows["n-gram, held-out files as they are"]


def test_each_line_of_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call takes one second by this clock."""
    monkeypatch.setattr(script, "seconds", lambda call: (call(), 1.0)[1])
    lines = list(script.timed(model(), DraftModel(model(), Decoder(model(), 1, 40)), pieces(), 13))
    assert [lines[0], lines[3]] == [f"{name}: plain 26 tokens/s" for name in ("held-out files", "the prompt once more")]
    for line in (lines[2], lines[5]):
        assert line == "  draft model: 26 tokens/s, 4.00 tokens a step; equal answers: 2 of 2"
    assert lines[1].startswith("  n-gram: 26 tokens/s, ")
