"""The kernels of examples/generation compute the plain step, at each place of the cache, with each kind of weights."""

import pytest
import torch

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples.generation import by_library
from snippets.examples.generation_kernels import Attention, TritonDecoder, prepared
from snippets.examples.generation_step import Decoder
from tests.snippets.examples.test_generation import HERE, model, other_model, prompts


def every(decoder: Decoder) -> list[torch.Tensor]:
    return [tensor for pair in decoder.cache for tensor in pair]


def test_the_step_at_each_place_of_the_cache() -> None:
    """Of one decoder: what a call leaves behind must not disturb the next."""
    plain, fast = Decoder(model(), 1, 256), TritonDecoder(model(), 256)
    fast.attention = Attention(fast.heads, fast.shared, fast.size, 256, HERE, splits=8)  # four of them are empty
    torch.manual_seed(0)
    for one, other in zip(every(plain), every(fast), strict=True):
        other.copy_(one.normal_())
    token = torch.tensor([7], device=HERE)
    for position in (0, 63, 64, 255):
        at = torch.tensor([position], device=HERE)
        torch.testing.assert_close(fast(token, at), plain(token, at), rtol=1e-4, atol=1e-4)
    for one, other in zip(every(plain), every(fast), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)


def test_the_library_s_tokens() -> None:
    own = other_model(num_hidden_layers=1)
    assert prepared(own, length=64).generate(prompts()[:1], 5, every=2) == [by_library(own, prompts()[0], 5)]
