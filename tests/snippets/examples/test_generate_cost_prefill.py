"""A prompt's first token is the library's, and what does not fit is not run."""

import pytest

from snippets.examples import generate_cost_prefill, generation
from tests.snippets.examples.test_generate_cost_host import PROMPT, model


def test_a_prompt_s_first_token_is_the_library_s(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate_cost_prefill.first_token(model(), PROMPT[None]).tolist() == generation.by_library(
        model(), PROMPT, 1
    )
    monkeypatch.setattr(generate_cost_prefill, "MOST", 16)
    generate_cost_prefill.prefill(model(), (1, 2), (8, 16))
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].endswith("not run, more than 16 tokens") and all("TFLOP/s" in line for line in lines[:3])
