"""Packing with a gradient of its own is the same function, and its backward adds nothing up."""

from functools import partial

import pytest
import torch

from snippets.patterns import attention_padding_masks, attention_padding_varlen
from snippets.patterns.attention_padding_masks import make_mask
from snippets.patterns.attention_padding_packing import Pack, in_backward, packed_inside
from snippets.patterns.attention_padding_varlen import pack
from snippets.validation.equivalence import check
from tests.benchmarks.patterns import attention_padding as case
from tests.snippets.patterns.test_attention_padding import (
    LENGTHS,
    ON_A_GPU,
    ON_DEVICE,
    PACKING,
    RESULTS,
    TOKENS,
    in_its_place,
    results,
    tensors,
)


@pytest.mark.parametrize("causal", [True, False])
def test_it_is_each_row_alone_forward_and_backward(causal: bool, monkeypatch) -> None:
    if not ON_A_GPU:
        monkeypatch.setattr(attention_padding_varlen, "varlen_attn", in_its_place)
    given = tensors()
    exact = case.in_float64(given[:3], given[3], LENGTHS, causal, training=True)
    formula = partial(attention_padding_masks.formula, mask=make_mask(ON_DEVICE, TOKENS, causal))
    found = results(partial(packed_inside, packing=PACKING, causal=causal), given, False)
    plain = results(formula, given, False)
    check(dict(zip(RESULTS, found, strict=True)), dict(zip(RESULTS, plain, strict=True)), exact)


def test_backward_adds_nothing_up() -> None:
    assert "index_put" in in_backward(pack)
    assert in_backward(Pack.apply)[-1] == "index_copy"


def test_the_gradient_in_float64() -> None:
    t = torch.randn(3, TOKENS, 1, dtype=torch.float64, requires_grad=True)
    packing = PACKING._replace(index=PACKING.index.cpu())
    torch.testing.assert_close(*(torch.autograd.grad(way(t, packing).sin().sum(), t) for way in (pack, Pack.apply)))


def test_the_script_names_what_is_called(script) -> None:
    lines = script("snippets.patterns.attention_padding_packing").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["t[index]", "Pack"]
