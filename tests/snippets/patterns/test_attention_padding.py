"""Every way to leave padding out is each row alone, and what the page says of padding holds."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.patterns import attention_padding_varlen
from snippets.patterns.attention_padding import Model, gradients, masked_loss, row_by_row
from snippets.patterns.attention_padding_masks import (
    as_float,
    causal_only,
    formula,
    make_mask,
    real_tokens,
    with_mask,
)
from snippets.patterns.attention_padding_varlen import (
    make_packing,
    nested,
    pack,
    packed_inside,
    spread_lengths,
    variable_length,
)
from snippets.validation.equivalence import check
from tests.benchmarks.case import Point
from tests.benchmarks.patterns import attention_padding as case

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_A_GPU = DEVICE.type == "cuda"
DTYPE = torch.bfloat16 if ON_A_GPU else torch.float32
LENGTHS, TOKENS, HEADS, SIZE = torch.tensor([3, 200, 129]), 200, 2, 16
RESULTS = ("output", "q.grad", "k.grad", "v.grad")
PACKING = make_packing(LENGTHS, TOKENS, DEVICE)
ON_DEVICE = LENGTHS.to(DEVICE)


def in_its_place(
    q: Tensor, k: Tensor, v: Tensor, begin: Tensor, _: Tensor, longest: int, __: int, window_size
) -> Tensor:
    """What varlen_attn computes, one row after the other: for a CPU, which lacks it."""
    assert begin.dtype == torch.int32
    assert longest == (begin[1:] - begin[:-1]).max()
    rows = [slice(*both) for both in zip(begin.tolist(), begin[1:].tolist(), strict=False)]
    causal = {(-1, 0): True, (-1, -1): False}[window_size]
    attend = partial(F.scaled_dot_product_attention, is_causal=causal)
    return torch.cat([attend(*(t[row].transpose(0, 1) for t in (q, k, v))).transpose(0, 1) for row in rows])


@pytest.fixture(autouse=True)
def _varlen_everywhere(monkeypatch):
    if not ON_A_GPU:
        monkeypatch.setattr(attention_padding_varlen, "varlen_attn", in_its_place)


def tensors() -> list[Tensor]:
    """q, k, v, and a gradient that is zero at padding."""
    torch.manual_seed(0)
    q, k, v, incoming = (torch.randn(3, TOKENS, HEADS, SIZE, device=DEVICE).to(DTYPE) for _ in range(4))
    return [q, k, v, incoming * real_tokens(ON_DEVICE, TOKENS)[..., None, None]]


def results(way, given: list[Tensor], packed: bool) -> list[Tensor]:
    """The result and the gradients, where the tokens are real."""
    given = [pack(t, PACKING) if packed else t for t in given]
    leaves = [t.detach().requires_grad_() for t in given[:3]]
    output = way(*leaves)
    found = (output, *torch.autograd.grad(output, leaves, given[3]))
    return [t if packed else pack(t, PACKING) for t in found]


def ways(causal: bool) -> dict:
    mask, rows = make_mask(ON_DEVICE, TOKENS, causal), {"packing": PACKING, "causal": causal}
    return {
        "formula": (partial(formula, mask=mask), False),
        "mask": (partial(with_mask, mask=mask), False),
        "float": (partial(with_mask, mask=as_float(mask, DTYPE)), False),
        "causal": (causal_only, False),
        "inside": (partial(packed_inside, **rows), False),
        "varlen": (partial(variable_length, **rows), True),
        "nested": (partial(nested, **rows), True),
    }


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ways(True))
def test_every_way_is_each_row_alone_forward_and_backward(name: str, causal: bool) -> None:
    if name == "causal" and not causal:
        pytest.skip("it has no other form")
    if name == "nested" and causal and not ON_A_GPU:
        pytest.skip("on a CPU no kernel takes nested tensors that are causal")
    given = tensors()
    exact = case.in_float64(given[:3], given[3], LENGTHS, causal, training=True)
    plain = dict(zip(RESULTS, results(*ways(causal)["formula"][:1], given, False), strict=True))
    way, packed = ways(causal)[name]
    check(dict(zip(RESULTS, results(way, given, packed), strict=True)), plain, exact)


def test_the_reference_is_the_formula_token_by_token() -> None:
    given = [t.double() for t in tensors()]
    found = case.in_float64(given[:3], given[3], LENGTHS, True, training=False)["output"]
    q, k, v = (pack(t, PACKING) for t in given[:3])
    for row, begin in enumerate(PACKING.offsets[:-1].tolist()):
        for at in range(begin, begin + int(LENGTHS[row])):
            weights = torch.einsum("hd,khd->hk", q[at], k[begin : at + 1]) / math.sqrt(SIZE)
            torch.testing.assert_close(
                found[at], torch.einsum("hk,khd->hd", weights.softmax(-1), v[begin : at + 1]), rtol=1e-12, atol=1e-12
            )


# ---- what the page says of padding ----------------------------------------------------------------------------------


def rows_of_tokens() -> tuple[Model, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    lengths = torch.tensor([5, 20, 1])
    tokens, targets = torch.randint(50, (2, 3, 20))
    return Model().double(), tokens, targets, lengths, real_tokens(lengths, 20)


def test_causal_with_padding_behind_needs_no_mask() -> None:
    """Loss and gradients are those of rows without padding, whatever stands at padding."""
    model, tokens, targets, lengths, real = rows_of_tokens()
    exact = row_by_row(model, tokens, targets, lengths)
    expected = gradients(model, row_by_row(model, tokens, targets, lengths))
    for other in (tokens, torch.where(real, tokens, torch.randint(50, tokens.shape))):
        loss = masked_loss(model(other, causal_only), targets, real)
        torch.testing.assert_close(loss, exact, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(gradients(model, loss), expected)


def test_a_loss_over_padding_is_another_loss() -> None:
    model, tokens, targets, lengths, real = rows_of_tokens()
    exact = row_by_row(model, tokens, targets, lengths)
    assert (masked_loss(model(tokens, causal_only), targets, torch.ones_like(real)) - exact).abs() > 1e-3


def test_the_loss_is_the_mean_over_real_tokens() -> None:
    _, _, targets, lengths, real = rows_of_tokens()
    logits = torch.randn(3, 20, 50)
    every = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(3, 20)
    torch.testing.assert_close(masked_loss(logits, targets, real), every[real].sum() / lengths.sum())


def test_the_script_proves_it(script) -> None:
    lines = script("snippets.patterns.attention_padding").stdout.splitlines()
    found = {line[:32].strip(): line[32:].split() for line in lines[3:]}
    same = "< 1e-13"
    right = {how for how, words in found.items() if " ".join(words).count(same) == 3}
    assert right == {"mask, causal", "is_causal"}
    assert len(found) == 5


# ---- the case -------------------------------------------------------------------------------------------------------


def test_the_flops_of_the_benchmark_are_those_of_rows_alone() -> None:
    point = Point({"rows": 4, "tokens": 96, "heads": 2}, "float32", "both", part="full")
    lengths = spread_lengths(4, 96)
    forward = sum(2 * 2 * 2 * length**2 * 16 for length in lengths.tolist())  # products, heads, multiply and add
    assert case.prepare(point, torch.device("cpu")).flops == forward * 7 // 2
    causal = Point({"rows": 4, "tokens": 96, "heads": 2}, "float32", "forward", part="causal")
    assert forward / 2 < case.prepare(causal, torch.device("cpu")).flops < forward * 0.52


def test_the_case_asks_for_variants_that_it_has() -> None:
    has = set(case.prepare(next(iter(case.points(torch.device("cpu")))), torch.device("cpu")).variants)
    for device in ("cpu", "cuda"):
        asked = [point.variants or () for point in case.points(torch.device(device))]
        assert {name for names in asked for name in names} <= has
