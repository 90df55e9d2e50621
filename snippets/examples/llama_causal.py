"""Attention without a mask, so that the flag is kept; and each layer compiled."""

from torch import Tensor, nn

from snippets.examples.llama_model import Loss, compiled, eager


# --8<-- [start:causal]
def no_mask(*_: object, attention_mask: Tensor | None = None, **__: object) -> None:
    """What the library then passes to attention in place of a mask. Padding would be lost: refuse it."""
    if attention_mask is not None:
        raise ValueError("attention_mask: expected none, since attention here is causal and knows of no padding")


def say_causal(model: nn.Module) -> nn.Module:
    """Attention without a mask: then the library's own function sets is_causal, traced or not."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("causal", sdpa_attention_forward)
    AttentionMaskInterface.register("causal", no_mask)
    model.set_attn_implementation("causal")
    return model


def compiled_causal(model: nn.Module) -> Loss:
    return compiled(say_causal(model))


# --8<-- [end:causal]


def layers_compiled(model: nn.Module) -> Loss:
    """The mask is made outside of what is traced, and one graph serves all layers."""
    for layer in model.model.layers:
        layer.compile(dynamic=False)
    return eager(model)
