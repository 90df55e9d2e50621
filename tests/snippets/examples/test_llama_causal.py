"""One graph serves all layers."""

from collections.abc import Callable

import pytest
import torch

from snippets.examples import llama, llama_causal, llama_model
from tests.snippets.examples.test_llama_model import model, tokens, traced_only  # noqa: F401  a fixture


@pytest.mark.parametrize("rung", [llama_causal.layers_compiled, llama.rewritten_compiled])
def test_one_graph_serves_more_layers_than_dynamo_would_compile_anew(rung: Callable) -> None:
    layers = torch._dynamo.config.recompile_limit + 2
    torch._dynamo.utils.counters.clear()
    rung(llama_model.sharing(model(layers=layers)))(tokens())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_causal_attention_is_wrong_beside_a_cache_and_generates_after_a_return() -> None:
    """What the page warns of, and the call that it names. The flag aligns the first query with the first key."""
    changed = llama_model.sharing(model()).eval()

    def off() -> float:
        with torch.no_grad():
            first = changed(input_ids=tokens()[:, :16], use_cache=True).past_key_values
            second = changed(input_ids=tokens()[:, 16:], past_key_values=first, use_cache=True).logits
            return (second - changed(input_ids=tokens()).logits[:, 16:]).abs().max().item()

    assert off() < 1e-3
    llama_causal.say_causal(changed)
    assert off() > 0.1
    with pytest.raises(ValueError, match="attention_mask: expected none"):
        changed.generate(tokens()[:, :8], max_new_tokens=2)
    changed.set_attn_implementation("sdpa")
    assert off() < 1e-3
    assert changed.generate(tokens()[:, :8], max_new_tokens=2).shape == (2, 10)
