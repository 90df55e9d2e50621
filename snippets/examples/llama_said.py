"""What attention is given: a mask or the flag, eager or traced."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snippets.examples.llama_model import Loss, eager


# --8<-- [start:said]
def said(loss_of: Loss, tokens: Tensor) -> tuple[str, str, int]:
    """What attention is given in the first layer: the mask, is_causal, and how many heads the keys have."""
    found = []
    plain = F.scaled_dot_product_attention

    def watched(query: Tensor, key: Tensor, *rest: object, **options: object) -> Tensor:
        found.append((key, options))
        return plain(query, key, *rest, **options)

    with replaced(F, "scaled_dot_product_attention", watched):
        loss_of(tokens)
    key, options = found[0]
    mask = options.get("attn_mask")
    shown = "none" if mask is None else f"{str(mask.dtype).removeprefix('torch.')} {tuple(mask.shape)}"
    return shown, str(options["is_causal"]), key.shape[1]


def traced(model: nn.Module, tokens: Tensor) -> tuple[str, str, int]:
    """The same, as Dynamo's graph of the whole loss has it."""
    seen = []

    def look(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
        seen.extend(node for node in graph.graph.nodes if node.target is F.scaled_dot_product_attention)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(eager(model), backend=look, dynamic=False)(tokens)
    key, options = seen[0].args[1], seen[0].kwargs
    mask = options.get("attn_mask")
    if mask is None:
        return "none", str(options["is_causal"]), key.meta["example_value"].shape[1]
    mask = mask.meta["example_value"]
    shown = f"{str(mask.dtype).removeprefix('torch.')} {tuple(mask.shape)}"
    return shown, str(options["is_causal"]), key.meta["example_value"].shape[1]


# --8<-- [end:said]


# --8<-- [start:mended]
@contextmanager
def first_guard_open() -> Iterator[None]:
    """The change of transformers' pull request 48975: that there is no padding is known while tracing, too.

    On torch 2.11 it changes nothing: there `is_exporting` says yes whenever Dynamo traces.
    """
    from transformers import masking_utils

    plain = masking_utils._ignore_causal_mask_sdpa

    def ignore(padding_mask: Tensor | None, q_length: int, kv_length: int, *rest: object, **options: object) -> bool:
        if padding_mask is None and not torch.compiler.is_exporting():
            return q_length == 1 or q_length == kv_length
        return plain(padding_mask, q_length, kv_length, *rest, **options)

    with replaced(masking_utils, "_ignore_causal_mask_sdpa", ignore):
        yield


# --8<-- [end:mended]


@contextmanager
def replaced(where: object, name: str, by: object) -> Iterator[None]:
    before = getattr(where, name)
    setattr(where, name, by)
    try:
        yield
    finally:
        setattr(where, name, before)


def show(what: str, found: tuple[str, str, int]) -> None:
    mask, is_causal, heads = found
    print(f"{what:36}{mask:24}{is_causal:12}{heads}")


def layers_traced(model: nn.Module) -> Loss:
    """Each layer traced by itself; what is traced runs as it is, so that one can see what it is given."""
    for layer in model.model.layers:
        layer.compile(backend="eager", dynamic=False)
    return eager(model)
