"""What the kernels cannot do is refused, and they keep no input of the last product."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from snippets.examples import hf_llama, hf_llama_kernels, llama_model
from tests.snippets.examples.test_hf_llama_chunks import HERE, holds, model, tokens, traced_only  # noqa: F401  a fixture


def test_a_wrong_input_of_the_last_product_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = hf_llama_kernels.gated_again()
    monkeypatch.setattr(hf_llama_kernels, "gated_again", lambda: lambda *given: (*plain(*given)[:2], given[2]))
    with pytest.raises(AssertionError, match=r"down_proj\.weight\.grad"):
        holds(hf_llama.RUNGS["triton"])


def refused(match: str, changed: nn.Module, **asked: object) -> None:
    with pytest.raises(ValueError, match=match):
        changed(input_ids=tokens(), labels=tokens(), **asked)


def test_what_the_kernels_cannot_do_is_refused() -> None:
    changed = hf_llama_kernels.with_kernels(llama_model.sharing(model()))
    left = torch.ones_like(tokens())
    left[:, :4] = 0
    refused("attention_mask: expected None, or padding on the right", changed, attention_mask=left)
    refused("attention_mask: expected", changed, attention_mask=left[:, None, None])
    packed = torch.arange(32, device=HERE)[None]
    refused(r"expected input_ids, attention_mask and labels only, got \['position_ids'\]", changed, position_ids=packed)
    with torch.autocast(HERE.type, torch.bfloat16):
        refused("got autocast", changed)
    changed.model.layers[0].mlp.up_proj = nn.Sequential(changed.model.layers[0].mlp.up_proj)  # an adapter, added later
    refused(r"layers\.0\.mlp\.up_proj: expected a plain nn\.Linear", changed)


def kept_of_the_mlp(rung: Callable[[nn.Module], llama_model.Loss]) -> int:
    """How many tensors of the MLP's inner width the forward of both layers keeps for the backward."""
    found: set[int] = set()
    one = tokens()[:1]

    def pack(t: Tensor) -> Tensor:
        if t.dim() and t.shape[-1] == llama_model.TINY["intermediate_size"] and t.numel() == one.numel() * t.shape[-1]:
            found.add(t.untyped_storage().data_ptr())
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = rung(llama_model.sharing(model()))(one)
    del loss
    return len(found)


def test_the_kernels_keep_no_input_of_the_last_product() -> None:
    assert kept_of_the_mlp(hf_llama.RUNGS["triton"]) == 2 * len(("gate", "up"))
    assert kept_of_the_mlp(llama_model.eager) == 2 * len(("gate", "its activation", "up", "their product"))
