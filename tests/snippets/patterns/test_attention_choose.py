"""Every way of the page is the formula with its rule's mask, forward and backward."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from snippets.patterns import attention_choose as page
from snippets.patterns.attention_choose import filled_part, learned, make_row, packed, repeated, spread
from snippets.patterns.attention_masks_agreement import inputs
from snippets.patterns.attention_masks_rules import causal, dense, documents, formula, real_keys, window
from snippets.validation.equivalence import check
from tests.benchmarks.case import Point
from tests.benchmarks.patterns import attention_choose as case

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_A_GPU = DEVICE.type == "cuda"
ONLY_ON_A_GPU = {"flash", "cudnn", "efficient", "nested"}
SHAPES = [(point.part, point.shape, point.direction) for point in case.CASE.checked()]


def in_its_place(
    q: Tensor, k: Tensor, v: Tensor, begin: Tensor, _: Tensor, longest: int, __: int, window_size: tuple[int, int]
) -> Tensor:
    """What varlen_attn computes, one document after the other: for a CPU, which lacks it."""
    assert begin.dtype == torch.int32 and longest == (begin[1:] - begin[:-1]).max()
    before, behind = window_size
    assert behind == 0
    parts = []
    for start, end in itertools.pairwise(begin.tolist()):
        apart = torch.arange(end - start)[:, None] - torch.arange(end - start)
        mask = (apart >= 0) & (apart <= before if before >= 0 else apart >= 0)
        qkv = (t[start:end].transpose(0, 1)[None] for t in (q, k, v))
        parts.append(F.scaled_dot_product_attention(*qkv, attn_mask=mask)[0].transpose(0, 1))
    return torch.cat(parts)


@pytest.fixture(autouse=True)
def _on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same functions, not compiled: FlexAttention's formula."""
    if not ON_A_GPU:
        monkeypatch.setattr(page, "varlen_attn", in_its_place)
        monkeypatch.setattr(torch, "compile", lambda function, **how: function)


def left_out(name: str, direction: str) -> bool:
    """On a GPU what has to be compiled, which takes minutes: the case checks it before it is timed."""
    if ON_A_GPU:
        return name in ("flex", "compile-formula")
    return name in ONLY_ON_A_GPU or (name, direction) == ("flex", "both")


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize(("part", "shape", "direction"), SHAPES)
def test_every_way_of_the_case_is_right(part: str, shape: dict[str, int], direction: str) -> None:
    torch.manual_seed(0)
    workload = case.prepare(Point(shape, "bfloat16" if ON_A_GPU else "float32", direction, part=part), DEVICE)
    results = {}
    for name, variant in workload.variants.items():
        if not left_out(name, direction):
            try:
                results[name] = variant.results(variant.build()())
            except RuntimeError as refused:  # by one of SDPA's kernels: the record tells
                assert name in ONLY_ON_A_GPU, refused
    reference = workload.reference()
    for found in results.values():
        check(found, results["formula"], reference)
    assert len(results) >= 3


def test_the_case_asks_for_variants_that_it_has() -> None:
    for point in case.points(torch.device("cuda")):
        shape = {"rows": 2, "tokens": 128, "heads": 8}
        small = Point(shape, "float32", point.direction, part=point.part)
        assert set(point.variants or ()) <= set(case.prepare(small, torch.device("cpu")).variants)


def test_only_what_is_seen_counts_as_work() -> None:
    torch.manual_seed(0)

    def flops(direction: str, rule: str) -> int:
        shape = {"rows": 2, "tokens": 64, "heads": 8}
        return case.prepare(Point(shape, "float32", direction, part=rule), torch.device("cpu")).flops

    every = 64 * 65 // 2 * 2 * 2 * 2 * 8 * 16  # pairs, two products, multiply and add, rows, heads, size
    assert flops("forward", "causal") == flops("forward", "alibi") == flops("forward", "grouped") == every
    assert flops("both", "causal") == every * 7 // 2
    assert flops("forward", "window") == every // (64 * 65 // 2) * (64 * 8 - 8 * 7 // 2)
    assert flops("forward", "documents") < every / 2


def test_a_kernel_that_is_told_to_run_alone_refuses_what_it_lacks() -> None:
    q, k, v = (t.float().to(DEVICE) for t in inputs(8, 8))
    if not ON_A_GPU:
        with pytest.raises(RuntimeError):
            page.only(page.BACKENDS["cudnn"], q, k, v)
    torch.testing.assert_close(
        page.only(torch.nn.attention.SDPBackend.MATH, q, k, v), F.scaled_dot_product_attention(q, k, v)
    )


# ---- packed rows, repeated heads, a cache ---------------------------------------------------------------------------


def test_documents_fill_their_row_and_differ() -> None:
    for tokens, number in ((8192, 16), (2048, 4), (128, 3)):
        lengths = spread(tokens, number)
        assert sum(lengths) == tokens and min(lengths) > 0 and len(set(lengths)) == number
        assert 2 < max(lengths) / min(lengths) < 3.5


@pytest.mark.skipif(ON_A_GPU, reason="in float64, by a stand-in for the kernel")
def test_packed_is_the_rule_of_documents_and_of_a_window() -> None:
    torch.manual_seed(0)
    q, k, v = (t[:1] for t in inputs(20, 20))
    document = torch.tensor([[0] * 3 + [1] * 12 + [2] * 5])
    row = make_row([3, 12, 5], "cpu")
    assert row.offsets.tolist() == [0, 3, 15, 20] and row.longest == 12
    torch.testing.assert_close(packed(q, k, v, row), formula(q, k, v, dense(documents(document), 1, 20, 20)))
    whole = make_row([20], "cpu")
    torch.testing.assert_close(packed(q, k, v, whole, 4), formula(q, k, v, dense(window(4), 1, 20, 20)))


def test_repeated_heads_and_a_filled_part() -> None:
    torch.manual_seed(0)
    q, k, v = inputs(9, 9, heads=6, kv_heads=2)
    torch.testing.assert_close(repeated(q, k, v, is_causal=True), formula(q, k, v, dense(causal, 1, 9, 9)))
    mask = dense(real_keys(torch.tensor([7, 7])), 2, 1, 9)
    torch.testing.assert_close(filled_part(q[:, :, :1], k, v, 7), formula(q[:, :, :1], k, v, mask))


def test_a_call_is_right_wrong_or_refused_with_a_reason() -> None:
    q, k, v = (t.float().to(DEVICE).requires_grad_() for t in inputs(8, 8))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True).detach()
    assert page.why_not(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), expected) == "right"
    assert page.why_not(lambda: F.scaled_dot_product_attention(q, k, v), expected) == "wrong"
    with_fewer = lambda: page.only(page.BACKENDS["flash"], q, k[:, :2], v[:, :2])  # noqa: E731
    assert page.why_not(with_fewer, expected) not in ("right", "wrong")


def test_a_learned_bias_is_the_formula_with_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, FlexAttention refuses gradients of q, k and v, but not of a table that `score_mod` reads."""
    monkeypatch.undo()  # the formula, too, calls torch.compile: it finds the table there
    torch.manual_seed(0)
    tokens, cap = 40, 2.0  # a cap that changes these scores
    q, k, v = torch.randn(3, 2, 3, tokens, 16, dtype=torch.float64)
    table = torch.randn(3, 2 * tokens - 1, dtype=torch.float64, requires_grad=True)
    at = torch.arange(tokens)
    bias = torch.stack([table[:, query - at + tokens - 1] for query in range(tokens)], 1)
    scores = cap * torch.tanh((q @ k.mT / 4 + bias) / cap)
    expected = scores.softmax(-1) @ v
    y = flex_attention(q, k, v, score_mod=learned(table, cap))
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    dy = torch.randn_like(y)
    grads = [torch.autograd.grad(each, table, dy)[0] for each in (y, expected)]
    assert grads[0].abs().max() > 0.1
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
