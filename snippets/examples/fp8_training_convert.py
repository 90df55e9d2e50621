"""A model's linear layers in fp8, by torchao."""

from dataclasses import replace

import torch
from torch import nn

RECIPES = "tensorwise", "rowwise", "rowwise_with_gw_hp"


# --8<-- [start:convert]
def in_fp8(model: nn.Module, recipe: str, smallest: int = 16) -> nn.Module:
    """The matmuls of linear layers in fp8; a layer named lm_head, and those narrower than `smallest`, stay as they are.

    fp8 tensor cores want sizes in multiples of 16. Weights, gradients and the optimizer keep their dtype.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    if recipe not in RECIPES:
        raise ValueError(f"recipe: expected one of {', '.join(RECIPES)}, got {recipe!r}")

    def gains(layer: nn.Linear, name: str) -> bool:
        sizes = layer.in_features, layer.out_features
        return not name.endswith("lm_head") and min(sizes) >= smallest and not any(size % 16 for size in sizes)

    config = Float8LinearConfig.from_recipe_name(recipe)
    config = replace(config, emulate=not has_fp8(next(model.parameters()).device))
    return convert_to_float8_training(model, config=config, module_filter_fn=gains)


def has_fp8(device: torch.device) -> bool:
    """From Ada and Hopper on. Elsewhere torchao can emulate fp8's rounding, which is slow."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


# --8<-- [end:convert]


def converted(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if type(module).__name__ == "Float8Linear"]


def changed(model: nn.Module, name: str) -> nn.Module:
    """A column's name as the conversion: "bf16" or a recipe."""
    return model if name == "bf16" else in_fp8(model, name)
