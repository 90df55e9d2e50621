"""Autocast gives the dtypes that the page lists, and the script prints what it shows."""

import torch
import torch.nn.functional as F

from snippets.patterns import mixed_precision
from snippets.patterns.mixed_precision import DEVICE, dtypes_under_autocast
from tests.benchmarks.captures import sections


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
