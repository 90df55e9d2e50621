"""The step in each precision is one function, and the setting for TF32 is PyTorch's."""

import copy

import pytest
import torch

from snippets.patterns.mixed_precision import DEVICE
from snippets.patterns.mixed_precision_step import Model, products_of_fp32, train_step


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
