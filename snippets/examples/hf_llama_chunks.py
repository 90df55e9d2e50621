"""The loss in chunks, as a change of the model's forward that keeps the training script."""

import inspect
from collections.abc import Callable

import torch
from torch import Tensor, nn

from snippets.examples.llama_functions import LinearCrossEntropy
from snippets.examples.llama_kernels import shifted


# --8<-- [start:columns]
def keeping_columns(change: Callable[[nn.Module], nn.Module], model: nn.Module) -> nn.Module:
    """The change, with arguments named as before: the Trainer drops columns of a dataset that forward does not name."""
    named = inspect.signature(model.forward)
    change(model)
    model.forward.__signature__ = named  # type: ignore[attr-defined]
    return model


# --8<-- [end:columns]


# --8<-- [start:chunks]
def loss_in_chunks(model: nn.Module) -> nn.Module:
    """In training, the loss without the logits of all tokens. Layers stay the library's, with masks and adapters."""

    def hidden(input_ids: Tensor, attention_mask: Tensor | None, **options: object) -> Tensor:
        return model.model(input_ids=input_ids, attention_mask=attention_mask, **options).last_hidden_state

    return trained_by(hidden, model)


def trained_by(hidden: Callable[..., Tensor], model: nn.Module) -> nn.Module:
    """With labels and gradients, model(...).loss comes from these hidden states, and there are no logits."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    refuse_other_linears(model, "lm_head")
    plain = model.forward

    def forward(
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **options: object,
    ) -> object:
        if labels is None or not torch.is_grad_enabled():  # generation and evaluation stay as they are
            if num_items_in_batch is not None:
                options["num_items_in_batch"] = num_items_in_batch
            return plain(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **options)
        x = hidden(input_ids, attention_mask, **options)
        return CausalLMOutputWithPast(loss=chunked_loss(x, model.lm_head.weight, labels, num_items_in_batch))

    model.forward = forward
    return model


def chunked_loss(x: Tensor, weight: Tensor, labels: Tensor, items: Tensor | int | None = None) -> Tensor:
    """The mean over the tokens that count; or, as the Trainer asks where it accumulates gradients, the sum by items."""
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    target = shifted(labels)
    rows = max(1024, -(-len(target) // 4))  # four chunks: each adds once to the gradient of the weight
    loss = LinearCrossEntropy.apply(x.flatten(0, 1), weight, target, rows)
    return loss if items is None else loss * ((target != -100).sum() / items)


def refuse_other_linears(model: nn.Module, *ends: str) -> None:
    """Weights are used as they are: an adapter or a bias would be lost without an error."""
    for name, module in model.named_modules():
        if name.endswith(ends) and (type(module) is not nn.Linear or module.bias is not None):
            raise ValueError(f"{name}: expected a plain nn.Linear without bias, got {module}")


# --8<-- [end:chunks]
