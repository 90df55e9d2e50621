"""The kernels of examples/generation compute the plain step, at each place of the cache, with each kind of weights."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples.generation import Decoder, attended, by_library, quantized, restored
from snippets.examples.generation_kernels import Attention, TritonDecoder, matvec, prepared
from tests.snippets.examples.test_generation import HERE, model, prompts

KEPT = (None, torch.int8, torch.float8_e4m3fn, torch.uint8)


@pytest.mark.parametrize("dtype", KEPT)
@pytest.mark.parametrize(("rows", "columns"), ((10, 384), (24, 2048)))
@pytest.mark.parametrize("gated", (False, True))
def test_matvec(rows: int, columns: int, gated: bool, dtype: torch.dtype | None) -> None:
    torch.manual_seed(0)
    weight, x, norm, residual = (
        torch.randn(*s, device=HERE) for s in (((1 + gated) * rows, columns), (columns,), (columns,), (rows,))
    )
    matrix = quantized(weight, dtype)
    y = (restored(matrix, torch.float64) @ F.rms_norm(x, x.shape, norm, 1e-5).double()).float()
    y = residual + (F.silu(y[:rows]) * y[rows:] if gated else y)
    found = matvec(matrix, x, torch.empty_like(residual), norm=norm, eps=1e-5, residual=residual, gated=gated)
    torch.testing.assert_close(found, y, rtol=1e-4, atol=1e-3)


def every(decoder: Decoder) -> list[torch.Tensor]:
    return [tensor for pair in decoder.cache for tensor in pair]


@pytest.mark.parametrize("position", (0, 63, 64, 255))
def test_the_step_at_each_place_of_the_cache(position: int) -> None:
    plain, fast = Decoder(model(), 1, 256), TritonDecoder(model(), 256)
    torch.manual_seed(0)
    for one, other in zip(every(plain), every(fast), strict=True):
        other.copy_(one.normal_())
    token, at = torch.tensor([7], device=HERE), torch.tensor([position], device=HERE)
    for _ in range(2):  # what a call leaves behind must not disturb the next
        torch.testing.assert_close(fast(token, at), plain(token, at), rtol=1e-4, atol=1e-4)
    for one, other in zip(every(plain), every(fast), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("position", (300, 511))
def test_parts_of_several_blocks_and_none_of_them_empty(position: int) -> None:
    torch.manual_seed(0)
    q, keys, values = (torch.randn(*s, device=HERE) for s in ((1, 4, 32), (1, 2, 512, 32), (1, 2, 512, 32)))
    hidden = torch.arange(512, device=HERE) > position
    qkv = torch.cat((q[0], keys[0, :, position], values[0, :, position])).flatten()
    cos, sin = torch.ones(512, 32, device=HERE), torch.zeros(512, 32, device=HERE)
    at, fast = torch.tensor([position], device=HERE), Attention(4, 2, 32, 512, HERE, splits=2)
    for _ in range(3):  # the count of parts begins anew in each call
        out = fast(qkv, cos, sin, keys[0].clone(), values[0].clone(), at, torch.empty_like(q).flatten())
        torch.testing.assert_close(out[None], attended(q, keys, values, hidden[None]), rtol=1e-4, atol=1e-4)
        fast.parts.fill_(torch.nan)


def test_the_library_s_tokens() -> None:
    assert prepared(model(), length=64).generate(prompts()[:1], 5, every=2) == [by_library(model(), prompts()[0], 5)]
