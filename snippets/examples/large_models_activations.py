"""What saves activations and logits: layers computed again or kept on the CPU, and a loss in chunks."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from snippets.compiler.training_checkpointing import PRODUCTS
from snippets.examples.hf_llama_chunks import chunked_loss
from snippets.examples.large_models_change import Change
from snippets.examples.llama_kernels import shifted
from snippets.examples.llama_model import Loss, sharing

Layer = Callable[..., Tensor]


# --8<-- [start:repeat]
def repeated(layer: Layer, x: Tensor, keep_products: bool = False, **options: object) -> Tensor:
    """The layer, computed again in backward; `keep_products`: but for matmuls and attention."""
    selective = {"context_fn": partial(create_selective_checkpoint_contexts, PRODUCTS)} if keep_products else {}
    return checkpoint(layer, x, use_reentrant=False, **selective, **options)


def offloaded(layer: Layer, x: Tensor, **options: object) -> Tensor:
    """The layer; what it keeps for backward goes to pinned memory of the CPU, and comes back in backward."""
    with torch.autograd.graph.save_on_cpu(pin_memory=x.is_cuda):
        return layer(x, **options)


def change_layers(model: nn.Module, change: Change) -> None:
    for layer in model.model.layers:
        if change.budget is not None:
            layer.compile(dynamic=False)
        if change.repeat:
            layer.forward = partial(repeated, layer.forward, keep_products=change.repeat == "cheap")
        if change.offload:
            layer.forward = partial(offloaded, layer.forward)


# --8<-- [end:repeat]


# --8<-- [start:chunks]
def summed_loss(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, weight).float(), target, reduction="sum")


def loss_in_chunks(x: Tensor, weight: Tensor, target: Tensor, rows: int) -> Tensor:
    """The mean loss of x (tokens, width): logits of `rows` tokens exist at once, and again in backward."""
    parts = zip(x.split(rows), target.split(rows), strict=True)
    losses = [checkpoint(summed_loss, part, weight, classes, use_reentrant=False) for part, classes in parts]
    return torch.stack(losses).sum() / (target != -100).sum()


# --8<-- [end:chunks]


def changed(model: nn.Module, change: Change) -> Loss:
    """The loss of tokens (batch, length), under autocast to bf16; the model itself stays as it is."""
    model = sharing(model)
    change_layers(model, change)

    def loss(tokens: Tensor, labels: Tensor | None = None, **options: object) -> Tensor:
        labels = tokens if labels is None else labels
        with torch.autocast(tokens.device.type, torch.bfloat16, cache_enabled=change.cache):
            if not (change.rows or change.fused):
                return model(input_ids=tokens, labels=labels, **options).loss
            x = model.model(input_ids=tokens, **options).last_hidden_state
            if change.fused:
                return chunked_loss(x, model.lm_head.weight, labels)
            return loss_in_chunks(x.flatten(0, 1), model.lm_head.weight, shifted(labels), change.rows)

    return loss
