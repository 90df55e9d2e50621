"""A model whose step is another one is refused."""

import pytest
import torch
from torch import nn

from snippets.examples import generation, generation_step
from tests.snippets.examples.test_generation import model, other_model


@pytest.mark.parametrize(
    ("sizes", "message"),
    (
        ({"attention_bias": True}, r"expected no bias, got model\.layers\.0\.self_attn\.q_proj\.bias"),
        ({"head_dim": 64}, "expected heads that together are as wide as the model, got 256 in 128"),
        ({"hidden_act": "gelu"}, "expected SiLU, got gelu"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "on the length, got dynamic"),
    ),
)
def test_a_model_whose_step_is_another_is_refused(sizes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generation.prepared(other_model(**sizes))


def test_what_is_no_plain_llama_is_refused() -> None:
    with pytest.raises(TypeError, match="model: expected a LlamaForCausalLM, got a Linear"):
        generation.prepared(nn.Linear(1, 1))
    changed = other_model()
    changed.model.layers[1].mlp.up_proj = nn.Sequential(changed.model.layers[1].mlp.up_proj)
    with pytest.raises(ValueError, match=r"plain linear layers .* got model\.layers\.1\.mlp\.up_proj"):
        generation.prepared(changed)
    with pytest.raises(ValueError, match=r"expected int8, float8_e4m3fn or uint8 \(for int4\), got torch\.float16"):
        generation_step.refuse(model(), torch.float16)
    narrow = other_model(hidden_size=64, intermediate_size=192)
    with pytest.raises(ValueError, match=r"columns in steps of 128 for int4, got model\.layers\.0"):
        generation_step.refuse(narrow, torch.uint8)
    generation_step.refuse(narrow, torch.int8)


def test_a_model_is_not_prepared_in_inference_mode() -> None:
    """Its merged weights could never be trained again."""
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"outside torch\.inference_mode"):
        generation.prepared(other_model())
