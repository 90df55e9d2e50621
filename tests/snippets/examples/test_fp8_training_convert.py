"""What torchao's recipes convert and leave alone, and how they round gradients."""

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")
pytest.importorskip("torchao", reason="a development dependency: constraints.txt names its version")

from snippets.examples import fp8_training_convert
from snippets.examples.llama_model import TINY, make_model

CPU = torch.device("cpu")
LAYERS = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"}
LAYERS |= {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}


def model() -> nn.Module:
    torch.manual_seed(0)
    return make_model(TINY, CPU, torch.float32)


@pytest.mark.parametrize("recipe", fp8_training_convert.RECIPES)
def test_all_layers_but_the_last_are_converted_and_keep_their_weights(recipe: str) -> None:
    plain = model()
    weights = dict(plain.named_parameters())
    changed = fp8_training_convert.in_fp8(plain, recipe)
    assert set(fp8_training_convert.converted(changed)) == {
        f"model.layers.{i}.{name}" for i in range(2) for name in LAYERS
    }
    assert type(changed.lm_head) is nn.Linear
    assert all(parameter is weights[name] for name, parameter in changed.named_parameters())


@pytest.mark.parametrize(("columns", "rows"), [(64, 24), (24, 64)])
def test_sizes_that_the_tensor_cores_do_not_take_stay(columns: int, rows: int) -> None:
    layers = nn.Sequential(nn.Linear(columns, rows), nn.Linear(64, 64))
    assert fp8_training_convert.converted(fp8_training_convert.in_fp8(layers, "rowwise")) == ["1"]


def test_narrow_layers_stay_if_asked() -> None:
    found = fp8_training_convert.converted(fp8_training_convert.in_fp8(model(), "tensorwise", smallest=64))
    assert {name.rpartition(".")[2] for name in found} == {"q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_the_gradients_are_rounded_to_fp8_as_the_recipe_says() -> None:
    """With `rowwise_with_gw_hp` the gradient of the weight is computed without rounding."""
    torch.manual_seed(0)
    x, dy = torch.randn(32, 64), torch.randn(32, 48)
    errors = {}
    for recipe in fp8_training_convert.RECIPES:
        layer = fp8_training_convert.in_fp8(nn.Sequential(nn.Linear(64, 48, bias=False)), recipe)
        layer(x).backward(dy)
        errors[recipe] = (layer[0].weight.grad - dy.T @ x).norm() / (dy.T @ x).norm()
    assert errors["rowwise_with_gw_hp"] < 1e-5 < 0.01 < errors["rowwise"] < errors["tensorwise"] < 0.1


def test_another_recipe_is_refused() -> None:
    with pytest.raises(ValueError, match=r"recipe: expected one of tensorwise, rowwise, .*, got 'blockwise'"):
        fp8_training_convert.in_fp8(model(), "blockwise")
