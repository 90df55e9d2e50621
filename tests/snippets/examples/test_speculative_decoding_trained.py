"""examples/speculative_decoding_trained: what it trains on, and that each number it prints counts what it says."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import speculative_decoding_trained as script
from snippets.examples.generation import TINY, by_library
from snippets.examples.generation_step import Decoder
from snippets.examples.speculative_decoding import DraftModel
from tests.snippets.examples.test_generation import HERE, model


def pieces() -> Tensor:
    return torch.randint(256, (2, 12), generator=torch.Generator().manual_seed(3)).to(HERE)


def test_no_held_out_file_is_trained_on() -> None:
    text, files = script.texts()
    assert len(text) > 15 * sum(map(len, files)) > 0
    assert not any(file in text for file in files if len(file) > 2000)
    assert b"import unittest" in text  # the library's own modules, but not its tests
    assert b"class TestSFpatches(" not in text


def test_held_out_pieces_come_from_the_middle_and_too_few_are_refused() -> None:
    files = [bytes(range(8)), b"short", bytes(range(100, 120))]
    assert script.held_out(files, 2, 4).tolist() == [[4, 5, 6, 7], [110, 111, 112, 113]]
    with pytest.raises(ValueError, match="held-out files: expected 3 of 8 bytes or more, got 2"):
        script.held_out(files, 3, 4)


def test_training_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that is looked at twice a step."""
    plan, clock = script.PLANS["cpu"], itertools.count()
    monkeypatch.setattr(script, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    torch.manual_seed(0)
    sizes = TINY | {"num_hidden_layers": 1}
    before = script.bits(script.make_model(sizes, HERE, torch.float32).eval(), script.held_out([b"ab" * 64], 1, 64))
    found, steps = script.trained(sizes, b"ab" * 500, plan, limit=30)
    assert steps == 16
    assert script.bits(found, script.held_out([b"ab" * 64], 1, 64)) < 0.8 * before


def test_a_model_that_knows_nothing_needs_eight_bits_a_byte() -> None:
    blank = script.copied(model(), TINY, torch.float32)
    blank.lm_head.weight.data.zero_()
    assert script.bits(blank, pieces()) == pytest.approx(8)


def test_a_copy_has_the_same_weights_and_exact_angles() -> None:
    found = script.copied(model(), TINY, torch.bfloat16)
    for name, weight in found.named_parameters():
        torch.testing.assert_close(weight, model().get_parameter(name).bfloat16(), rtol=0, atol=0)
    assert found.model.rotary_emb.inv_freq.dtype == torch.float32


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
    plan = script.Plan({}, {}, (0, 0), batch=1, context=1, prompts=2, prompt=12, new=24)
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
