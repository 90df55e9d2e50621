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
