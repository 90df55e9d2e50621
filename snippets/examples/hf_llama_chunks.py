"""The loss in chunks, as a change of the model's forward that keeps the training script."""

import inspect
from collections.abc import Callable
from types import MethodType

import torch
from torch import Tensor, nn

from snippets.examples.llama_functions import LinearCrossEntropy
from snippets.examples.llama_kernels import shifted


# --8<-- [start:columns]
def keeping_columns(change: Callable[[nn.Module], nn.Module], model: nn.Module) -> nn.Module:
    """The change, with arguments named as before: the Trainer drops columns of a dataset that forward does not name."""
    named = inspect.signature(type(model).forward)
    change(model)
    model.forward.__func__.__signature__ = named  # type: ignore[attr-defined]
    return model


# --8<-- [end:columns]


# --8<-- [start:chunks]
def loss_in_chunks(model: nn.Module) -> nn.Module:
    """In training, the loss without the logits of all tokens. Layers stay the library's, with masks and adapters."""

    def hidden(self: nn.Module, input_ids: Tensor, attention_mask: Tensor | None, **options: object) -> Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, **{**options, "use_cache": False})[0]

    return trained_by(hidden, model, "lm_head")


def trained_by(hidden: Callable[..., Tensor], model: nn.Module, *used: str) -> nn.Module:
    """With labels and gradients, model(...).loss comes from these hidden states, and there are no logits."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    def forward(
        self: nn.Module,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **options: object,
    ) -> object:
        if labels is None or not torch.is_grad_enabled():  # generation and evaluation stay as they are
            if num_items_in_batch is not None:
                options["num_items_in_batch"] = num_items_in_batch
            return type(self).forward(
                self, input_ids=input_ids, attention_mask=attention_mask, labels=labels, **options
            )
        refuse_lost(options)
        refuse_other_linears(self, *used)  # adapters may have come since
        x = hidden(self, input_ids, attention_mask, **options)
        return CausalLMOutputWithPast(loss=loss_or_zero(x, self.lm_head.weight, labels, num_items_in_batch))

    if "forward" in vars(model):
        raise ValueError("model.forward: expected the class's own: change the model once, before others wrap it")
    refuse_other_linears(model, *used)
    model.forward = MethodType(forward, model)  # a copy of the model has its own, where a closure would stay with this
    return model


def loss_or_zero(x: Tensor, weight: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
    """Without any label the mean is 0 / 0. Then all tokens become labels, and their loss is multiplied by 0."""
    if labels.shape[1] == 1:  # no token has a next one
        return x.float().sum() * 0
    some = (labels[:, 1:] != -100).any()
    return chunked_loss(x, weight, torch.where(some, labels, 0), items) * some


def chunked_loss(x: Tensor, weight: Tensor, labels: Tensor, items: Tensor | int | None = None) -> Tensor:
    """The mean over the tokens that count; or, as the Trainer asks where it accumulates gradients, the sum by items."""
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    target = shifted(labels)
    rows = max(1024, -(-len(target) // 4))  # four chunks: each adds once to the gradient of the weight
    loss = LinearCrossEntropy.apply(x.flatten(0, 1), weight, target, rows)
    return loss if items is None else loss * ((target != -100).sum() / items)


def refuse_lost(options: dict[str, object]) -> None:
    """What the library would honour, and the loss in chunks would not; `return_dict=True` is what it does anyway."""
    names = "shift_labels", "ignore_index", "output_hidden_states", "output_attentions"
    lost = [name for name in names if options.get(name) is not None and options[name] is not False]
    if options.pop("return_dict", None) is False:
        lost.append("return_dict")
    if lost:
        raise ValueError(f"a call with labels in training: expected the library's defaults, got {lost}")


def refuse_other_linears(model: nn.Module, *ends: str) -> None:
    """Weights are used as they are: an adapter or a bias would be lost without an error."""
    for name, module in model.named_modules():
        if name.endswith(ends) and (type(module) is not nn.Linear or module.bias is not None):
            raise ValueError(f"{name}: expected a plain nn.Linear without bias, got {type(module).__name__}")


# --8<-- [end:chunks]
