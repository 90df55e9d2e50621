"""The step in each precision is one function, fp8 is a product, and the tables say what the page says of them."""

import copy

import pytest
import torch
import torch.nn.functional as F

from snippets.patterns import mixed_precision
from snippets.patterns.mixed_precision import (
    DEVICE,
    ROUNDED,
    Model,
    dtypes_under_autocast,
    error_of_bf16_sums,
    error_of_sums,
    in_tf32,
    linear_in_fp8,
    lost_gradients,
    moved,
    products_of_fp32,
    quantised,
    train_step,
)
from snippets.validation.equivalence import check
from tests.benchmarks.captures import sections

ON_FP8 = not torch.cuda.is_available() or torch.cuda.get_device_capability() >= (8, 9)


def after_a_step(cast: torch.dtype | None, kind: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """The loss and the gradients of a small model."""
    torch.manual_seed(0)
    model, tokens = Model().to(DEVICE, kind), torch.randint(512, (2, 33), device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler(DEVICE.type) if cast == torch.float16 else None
    loss = train_step(model, optimizer, tokens[:, :-1], tokens[:, 1:], cast, scaler)
    return {"loss": loss} | {name: p.grad for name, p in model.named_parameters() if "norm" not in name}


@pytest.mark.parametrize("cast", (torch.bfloat16, torch.float16))
def test_autocast_changes_rounding_and_nothing_else(cast):
    ours, exact = after_a_step(cast), after_a_step(None, torch.float64)
    assert all(t.dtype == torch.float32 for t in ours.values())
    for name, t in ours.items():
        error = (t.double() - exact[name]).norm() / exact[name].norm()
        assert error < (0.03 if cast == torch.bfloat16 else 0.005), f"{name}: {error}"


def test_a_step_is_an_update_and_forgets_the_gradients_before():
    torch.manual_seed(0)
    model, tokens = Model().to(DEVICE), torch.randint(512, (2, 33), device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [train_step(model, optimizer, tokens[:, :-1], tokens[:, 1:]).item() for _ in range(5)]
    assert before == sorted(before, reverse=True) and before[-1] < before[0] - 0.1
    again = copy.deepcopy(model)
    train_step(model, optimizer, tokens[:, :-1], tokens[:, 1:])
    train_step(again, torch.optim.SGD(again.parameters(), lr=0.1), tokens[:, :-1], tokens[:, 1:])
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters(), strict=True))


def test_the_scaler_leaves_a_step_with_an_infinite_gradient_out():
    """Scaled so far that fp16 overflows: nothing moves, and the scale is halved."""
    torch.manual_seed(0)
    model, tokens = Model().to(DEVICE), torch.randint(512, (2, 33), device=DEVICE)
    before = [p.detach().clone() for p in model.parameters()]
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=2.0**40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_step(model, optimizer, tokens[:, :-1], tokens[:, 1:], torch.float16, scaler)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert scaler.get_scale() == 2.0**39


def test_the_setting_is_pytorchs():
    usual = torch.get_float32_matmul_precision()
    try:
        products_of_fp32(tf32=True)
        assert torch.get_float32_matmul_precision() == "high"
        products_of_fp32(tf32=False)
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(usual)


# ---- fp8 ------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not ON_FP8, reason="tensor cores read fp8 from compute capability 8.9 on")
def test_a_product_of_fp8_is_that_of_the_quantised_rows():
    a, b = (torch.randn(size, 128, device=DEVICE, dtype=torch.bfloat16) for size in (64, 96))
    (qa, sa), (qb, sb) = quantised(a), quantised(b)
    assert sa.shape == (64, 1) and sb.shape == (96, 1) and qa.dtype == torch.float8_e4m3fn
    exact = (qa.double() * sa.double()) @ (qb.double() * sb.double()).t()
    check({"y": linear_in_fp8(a, b)}, {"y": exact.bfloat16()}, {"y": exact})


def test_each_row_has_its_scale_and_a_row_of_zeros_none_that_divides_by_zero():
    x = torch.randn(3, 64) * torch.tensor([[1.0], [1e4], [0.0]])
    q, scale = quantised(x)
    assert q.float().abs().amax(-1).tolist() == [448, 448, 0]
    back = q.float() * scale
    assert ((back - x).norm(dim=-1)[:2] / x.norm(dim=-1)[:2] < 0.04).all() and not back[2].any()


# ---- rounding -------------------------------------------------------------------------------------------------------


def test_tf32_has_ten_bits_rounded_to_the_nearest_even():
    one = torch.tensor([1.0, 1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-11 + 2**-20, -(1 + 3 * 2**-11)])
    assert in_tf32(one).tolist() == [1, 1 + 2**-10, 1, 1 + 2**-9, 1 + 2**-10, -(1 + 2**-9)]
    x = torch.randn(10_000)
    assert float((in_tf32(x) / x - 1).abs().max()) <= 2**-11


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_factors_cost_the_same_however_many_terms(name):
    few, many = (error_of_sums(terms, ROUNDED[name]) for terms in (64, 16384))
    assert many == pytest.approx(few, rel=0.15)


def test_sums_in_bf16_get_worse_with_their_length():
    few, many = error_of_bf16_sums(64), error_of_bf16_sums(4096)
    assert many > 4 * few > 8 * error_of_sums(64, ROUNDED["bf16"])


# ---- what is lost ---------------------------------------------------------------------------------------------------


def test_only_fp16_without_a_scale_loses_gradients():
    found = lost_gradients()
    assert found["fp16"] > 0.5 and found["bf16"] == found["fp16, scaled by 65536"] == 0


def test_small_updates_of_bf16_weights_are_rounded_away():
    assert moved(torch.float32, 1e-5) == (0, pytest.approx(1, abs=1e-3))
    still, way = moved(torch.bfloat16, 1e-5)
    assert still > 0.5 and way < 0.3
    still, way = moved(torch.bfloat16, 1e-3)
    assert still < 0.01 and way == pytest.approx(1, abs=0.1)


def test_products_are_cast_and_an_addition_takes_the_wider_dtype():
    found = dtypes_under_autocast()
    assert found["F.linear(x, w)"] == found["x @ w"] == torch.bfloat16
    assert found["y + x"] == found["F.cross_entropy(y, targets)"] == torch.float32
    if DEVICE.type == "cuda":
        assert found["y.softmax(-1)"] == found["F.layer_norm(y, (16,))"] == found["y.sum()"] == torch.float32
        assert found["F.gelu(y)"] == torch.bfloat16


def test_a_layer_norm_under_autocast_computes_in_fp32():
    """On a GPU its result is fp32; on a CPU, bf16 that was computed in fp32: nearer than bf16 throughout."""
    x = torch.randn(4, 512, device=DEVICE) + 10
    with torch.autocast(DEVICE.type, torch.bfloat16):
        y = F.layer_norm(x, (512,))
    assert float((y.float() - F.layer_norm(x, (512,))).abs().max()) < 0.02


def test_the_script_prints_what_the_page_shows(script):
    printed = script(mixed_precision.__name__).stdout
    assert list(sections(printed)) == ["rounding", "autocast", "underflow", "updates"]
