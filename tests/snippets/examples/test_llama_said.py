"""What attention is given, as it is and traced."""

import pytest
import torch

from snippets.examples import llama_causal, llama_model, llama_said
from tests.snippets.examples.test_llama_model import model, tokens, traced_only  # noqa: F401  a fixture


def test_what_attention_is_given() -> None:
    one = tokens()[:1]
    as_a_flag, as_a_mask = ("none", "True", 2), ("bool (1, 1, 32, 32)", "False", 4)
    assert llama_said.said(llama_model.eager(llama_model.sharing(model())), one) == as_a_flag
    assert llama_said.traced(llama_model.sharing(model()), one) == as_a_mask
    assert llama_said.traced(llama_causal.say_causal(llama_model.sharing(model())), one) == as_a_flag
    assert llama_said.said(llama_causal.layers_compiled(llama_model.sharing(model())), one) == as_a_flag


def says_exporting() -> bool:
    """What Dynamo makes of torch.compiler.is_exporting in code that is compiled: on torch 2.11 it says yes."""
    return torch.compile(lambda x: x + 1 if torch.compiler.is_exporting() else x, backend="eager")(torch.zeros(())) == 1


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_pull_request_mends_one_of_two_guards(use_cache: bool) -> None:
    other = llama_model.sharing(model())
    other.config.use_cache = use_cache
    with llama_said.first_guard_open():
        mask, is_causal, _ = llama_said.traced(other, tokens()[:1])
    mended = use_cache and not says_exporting()
    assert (mask == "none", is_causal == "True") == (mended, mended)
