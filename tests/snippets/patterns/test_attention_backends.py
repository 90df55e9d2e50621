"""A backend is chosen for a whole model, also when it is compiled; what ran is told; what is wrong shows."""

import itertools
import sys
import warnings
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend

from snippets.patterns import attention_backends as page
from snippets.patterns.attention_backends import not_finite, prefer, ran
from snippets.patterns.attention_masks_rules import causal, dense, documents, formula
from snippets.validation.equivalence import check
from tests.benchmarks.case import Point
from tests.benchmarks.patterns import attention_backends as case

DEVICE, ON_A_GPU = page.DEVICE, page.CUDA
CHECKED = [(point.part, point.direction, point.shape) for point in case.CASE.checked()]
ONLY_MATH = "aten::_scaled_dot_product_attention_math"


class Model(nn.Module):
    """Attention and nothing else, of q, k and v alike."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


# ---- the choice, and what ran ---------------------------------------------------------------------------------------


def test_a_model_takes_the_backends_that_it_is_given_and_no_other_call_does() -> None:
    x, model = torch.randn(1, 2, 16, 16, device=DEVICE), Model()
    (fused,), _ = ran(lambda: model(x))
    assert fused != ONLY_MATH
    chosen = prefer(Model(), [SDPBackend.MATH])
    assert ran(lambda: chosen(x))[0] == [ONLY_MATH] and ran(lambda: model(x))[0] == [fused]
    torch.testing.assert_close(chosen(x), model(x))


@pytest.mark.parametrize("compiled_first", [False, True])
def test_a_compiled_model_takes_them_too_in_one_graph(compiled_first: bool) -> None:
    x = torch.randn(1, 2, 16, 16, device=DEVICE)
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    def operations(order: list[SDPBackend]) -> list[str]:
        torch._dynamo.reset()
        if compiled_first:
            model = prefer(torch.compile(Model(), backend=backend, fullgraph=True), order)
        else:
            model = torch.compile(prefer(Model(), order), backend=backend, fullgraph=True)
        return ran(lambda: model(x))[0]

    fused, _ = ran(lambda: Model()(x))
    assert operations(page.ORDER) == fused
    assert not set(fused) & set(operations([SDPBackend.MATH]))  # the formula, of smaller operations
    assert len(graphs) == 2


def test_the_longest_kernel_is_told_on_a_gpu() -> None:
    x = torch.randn(1, 2, 64, 64, device=DEVICE, dtype=torch.bfloat16)
    operations, kernel = ran(lambda: Model()(x))
    assert operations and bool(kernel) == ON_A_GPU


def test_a_gradient_that_is_not_finite_is_counted(monkeypatch) -> None:
    assert not_finite(192, SDPBackend.MATH) == 0
    overflows = lambda q, k, v, **how: formula(q * torch.inf, k, v, torch.ones(1, dtype=torch.bool, device=DEVICE))  # noqa: E731
    monkeypatch.setattr(F, "scaled_dot_product_attention", overflows)
    assert not_finite(192) == 192 * 64


def test_the_script_says_what_ran_and_what_is_wrong(script) -> None:
    said = script("snippets.patterns.attention_backends").stdout
    _, ran_there, not_finite_there, orders = said.split("==== ")
    assert len(ran_there.splitlines()) == 4 and "_backward" in ran_there
    assert len(not_finite_there.splitlines()) == (18 if ON_A_GPU else 5)
    if not ON_A_GPU:
        assert all(line.endswith(": 0 not finite") for line in not_finite_there.splitlines()[1:])
        assert orders.count("right") == 4


# ---- the case -------------------------------------------------------------------------------------------------------


def each_alone(q: Tensor, k: Tensor, v: Tensor, of_q: Tensor, of_kv: Tensor, window: tuple[int, int]) -> Tensor:
    """Packed documents one after the other, by the formula: for a CPU, whose kernels take none."""
    parts = []
    for (begin, end), (first, last) in zip(*(itertools.pairwise(t.tolist()) for t in (of_q, of_kv)), strict=True):
        apart = torch.arange(end - begin)[:, None] - torch.arange(last - first)
        before, behind = (torch.inf if side in (-1, None) else side for side in window)
        heads_first = [
            t[at].transpose(0, 1)[None]
            for t, at in ((q, slice(begin, end)), *((t, slice(first, last)) for t in (k, v)))
        ]
        parts.append(formula(*heads_first, (apart <= before) & (-apart <= behind))[0].transpose(0, 1))
    return torch.cat(parts)


def varlen(
    q: Tensor, k: Tensor, v: Tensor, of_q: Tensor, of_kv: Tensor, longest_q: int, longest_kv: int,
    window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    assert enable_gqa or q.shape[1] == k.shape[1]
    for offsets, longest in ((of_q, longest_q), (of_kv, longest_kv)):
        assert offsets.dtype == torch.int32 and longest == (offsets[1:] - offsets[:-1]).max()
    return each_alone(q, k, v, of_q, of_kv, window_size)


def flash4(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, window_size: tuple = (None, None)) -> tuple:
    """Rows of one length, heads within a token; beside the output it returns another."""
    every = [torch.arange(len(t) + 1) * t.shape[1] for t in (q, k)]
    window = (window_size[0], 0) if causal else window_size
    return each_alone(*(t.flatten(0, 1) for t in (q, k, v)), *every, window).unflatten(0, q.shape[:2]), None


def flash4_varlen(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, **where: Tensor) -> tuple:
    offsets = where["cu_seqlens_q"], where["cu_seqlens_k"]
    return each_alone(q, k, v, *offsets, (None, 0) if causal else (None, None)), None


@pytest.fixture
def activated(monkeypatch) -> list[str]:
    """Stand-ins of what a CPU lacks; what was activated and restored, in order."""
    told: list[str] = []
    if not ON_A_GPU:
        package = ModuleType("flash_attn.cute")
        package.flash_attn_func, package.flash_attn_varlen_func = flash4, flash4_varlen
        for name in ("flash_attn", "flash_attn.cute"):
            monkeypatch.setitem(sys.modules, name, package)
        monkeypatch.setattr(case, "varlen_attn", varlen)
        monkeypatch.setattr(case, "activate_flash_attention_impl", told.append)
        monkeypatch.setattr(case, "restore_flash_attention_impl", lambda: told.append("restored"))
        monkeypatch.setattr(torch, "compile", lambda function, **how: function)
    return told


def left_out(name: str, direction: str) -> bool:
    """What has to be compiled takes minutes on a GPU; a CPU refuses others, and FlexAttention's backward."""
    if ON_A_GPU:
        return name in ("flex", "flex-flash", "flash3-sdpa", "flash4-sdpa", "flash4")
    return name in ("cudnn", "efficient", "flex-flash") or (name == "flex" and direction != "forward")


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")
@pytest.mark.parametrize(("part", "direction", "shape"), CHECKED)
def test_every_way_of_the_case_is_right(part: str, direction: str, shape: dict, activated: list[str]) -> None:
    torch.manual_seed(0)
    workload = case.prepare(Point(shape, "bfloat16" if ON_A_GPU else "float32", direction, part=part), DEVICE)
    results = {}
    for name, variant in workload.variants.items():
        if not left_out(name, direction):
            try:
                results[name] = {of: t.clone() for of, t in variant.results(variant.build()()).items()}
            except RuntimeError as refused:
                assert ON_A_GPU, refused
    reference = workload.reference()
    for name, found in results.items():
        assert check(found, results["formula"], reference), name
    assert ON_A_GPU or {"default", "flash", "varlen", "flash4"} < set(results)
    if not ON_A_GPU:
        in_three = ["FA3", "restored"] * 3 + ["FA4", "restored"] * 3  # the first call and the second, and what is built
        assert activated == (in_three if "flash4-sdpa" in workload.variants else [])


def test_points_ask_for_variants_that_there_are() -> None:
    for point in (*case.points(torch.device("cuda")), *case.points(torch.device("cpu"))):
        small = Point(case.SMALL, "float32", point.direction, part=point.part)
        assert set(point.variants or ()) <= set(case.prepare(small, torch.device("cpu")).variants)


def test_only_what_is_needed_counts_as_work() -> None:
    def flops(part: str, direction: str = "forward") -> int:
        return case.prepare(Point(case.SMALL, "float32", direction, part=part), torch.device("cpu")).flops

    full = 4 * 2 * 8 * 16 * 128**2  # two products, multiply and add; rows, heads, size, pairs
    assert flops("full") == full and flops("full", "backward") == full * 5 // 2
    assert flops("full", "both") == full * 7 // 2
    assert flops("causal") == full * 129 // 256
    assert flops("padding") == full * 5 // 8  # all of one row, and half of the queries and of the keys of the other
    assert flops("window") < flops("causal") and flops("documents") < flops("causal")


def test_pieces_are_the_formula(monkeypatch) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 16, 8, dtype=torch.float64) for heads in (8, 2, 2))
    of_token = torch.tensor([[0] * 6 + [1] * 10, [0] * 9 + [1] * 7])
    for mask in (dense(causal, 1, 16, 16), dense(documents(of_token), 2, 16, 16)):
        whole = formula(q, k, v, mask)
        for piece in (1, 16 * 16 * 8):
            monkeypatch.setattr(case, "PIECE", piece)
            torch.testing.assert_close(case.in_pieces(q, k, v, mask), whole)


@pytest.mark.parametrize("part", ["causal", "padding", "documents"])
def test_the_reference_is_the_same_in_blocks(part: str, monkeypatch) -> None:
    def reference() -> dict[str, Tensor]:
        torch.manual_seed(0)
        return case.prepare(Point(case.SMALL, "float32", "both", part=part), torch.device("cpu")).reference()

    whole = reference()
    monkeypatch.setattr(case, "BLOCK", 48)
    torch.testing.assert_close(reference(), whole)


def test_a_refusal_gives_its_reasons_and_what_is_none_passes() -> None:
    def refuses(message: str) -> object:
        for text in (
            "Flash attention kernel not used because: (Triggered internally at a.cpp:1.)",
            "Flash Attention does not support non-null attn_mask. (Triggered internally at a.cpp:2.)",
            "cuDNN attention has been runtime disabled. (Triggered internally at a.cpp:3.)",
        ):
            warnings.warn(text, stacklevel=1)
        raise RuntimeError(message)

    with pytest.raises(RuntimeError, match=r"^Flash Attention does not support non-null attn_mask$"):
        case.explained(lambda: refuses("No available kernel. Aborting execution."))
    with pytest.raises(RuntimeError, match=r"^no plan$"):
        case.explained(lambda: refuses("no plan"))
