"""What fp8 loses of a layer's gradients: each loss is seen alone, and a GPU's is what the digits make it."""

import pytest
import torch.nn.functional as F

from snippets.kernels import fp8_matmul_gradients as page


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (F.linear, (0.0, 0.0, 0.0)),
        (lambda x, weight: 1.1 * F.linear(x, weight), (0.1, 0.1, 0.1)),
        (lambda x, weight: F.linear(x, weight.detach() * 1.1 + (weight - weight.detach())), (0.1, 0.1, 0.0)),
    ],
)
def test_a_loss_is_seen_where_it_is(layer, expected: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(page.LAYERS, "wrong", layer)
    found = page.errors("wrong", *page.operands(64, 256, 128, "cpu"))
    assert list(found.values()) == pytest.approx(expected, abs=0.004), "bf16 itself loses two thousandths"


@pytest.mark.skipif(not page.FP8, reason="needs a GPU with fp8: Triton's interpreter cuts where a GPU rounds")
def test_errors_are_as_large_as_three_bits_and_two_bits_make_them() -> None:
    tensors = page.operands(1024, 2048, 1024, "cuda")
    for name in page.LAYERS:
        for what, error in page.errors(name, *tensors).items():
            digits = 0.0017 if name == "bf16" else 0.037
            if name == "rows, e5m2" and what != "output":  # one of two operands has a bit less
                digits = (0.026**2 + 0.053**2) ** 0.5
            assert error == pytest.approx(digits, rel=0.25), f"{name}: {what}"
