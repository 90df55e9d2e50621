"""Quantised weights are near, and merged ones are in memory once."""

import pytest
import torch

from snippets.examples import generation_weights
from snippets.examples.generation_step import Decoder
from tests.snippets.examples.test_generation import HERE, model, other_model


@pytest.mark.parametrize("dtype", (torch.int8, torch.float8_e4m3fn, torch.uint8))
def test_quantised_weights_are_as_near_as_their_dtype_allows(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = torch.randn(16, 256)
    error = (generation_weights.restored(generation_weights.quantized(weight, dtype), torch.float32) - weight).abs()
    most = weight.abs().unflatten(1, (-1, 128)).amax(-1, keepdim=True).expand(-1, -1, 128).flatten(1)
    if dtype == torch.uint8:
        assert (error <= most / 7 / 2 * 1.001).all()
    else:
        row = weight.abs().amax(1, keepdim=True)
        allowed = row / 127 / 2 if dtype == torch.int8 else weight.abs() / 16 + row / 448 / 1024
        assert (error <= allowed * 1.001).all()


def test_merging_again_makes_no_second_copy() -> None:
    first, second = (Decoder(model(), 1, 8).layers[0].qkv[0] for _ in range(2))
    assert first.data_ptr() == second.data_ptr()
    assert model().model.layers[0].self_attn.q_proj.weight.data_ptr() == first.data_ptr()


def test_a_weight_that_was_replaced_is_merged_anew() -> None:
    """Also one that lies in the storage of its neighbours, but not between them, as in a file's memory map."""
    changed = other_model()
    own = changed.model.layers[1].self_attn
    before = Decoder(changed, 1, 8).layers[1].qkv[0]
    own.k_proj.weight.data = own.k_proj.weight.data.flip(0)
    after = Decoder(changed, 1, 8).layers[1].qkv[0]
    assert torch.equal(after, torch.cat((own.q_proj.weight, own.k_proj.weight, own.v_proj.weight)))
    assert not torch.equal(after, before)
    whole = torch.randn(600, 128, device=HERE)
    own.q_proj.weight.data, own.k_proj.weight.data, own.v_proj.weight.data = whole[100:228], whole[300:364], whole[:64]
    expected = torch.cat((whole[100:228], whole[300:364], whole[:64]))
    assert torch.equal(Decoder(changed, 1, 8).layers[1].qkv[0], expected)
