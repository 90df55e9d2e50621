"""What the page says of a right softmax and of wrong ones."""

import pytest
import torch

from snippets.validation.equivalence import compare, distance
from snippets.validation.equivalence_candidates import misses_columns, never_stores, plain, rounds_once

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_by_the_bound(dtype, device):
    torch.manual_seed(0)
    x = torch.randn(16, 32768, device=device).to(dtype)
    exact = plain(x.double())
    assert torch.allclose(exact, torch.softmax(x.double(), -1))
    assert compare(rounds_once(x), plain(x), exact).holds
    assert not compare(never_stores(x), plain(x), exact).holds
    assert compare(misses_columns(x), plain(x), exact).holds == (dtype == torch.bfloat16), "as sharp as the dtype"


@pytest.mark.parametrize("device", DEVICES)
def test_allclose_refuses_what_is_nearer_to_the_truth(device):
    """The page's opening: PyTorch's own fused softmax against the formula, in bf16."""
    torch.manual_seed(0)
    x = torch.randn(16, 32768, device=device).bfloat16()
    fused, formula, exact = torch.softmax(x, -1), plain(x), plain(x.double())
    assert not torch.allclose(fused, formula)
    assert distance(fused, exact).max() < distance(formula, exact).max()
    assert compare(fused, formula, exact).holds


def test_the_script_prints_what_the_page_says(script):
    """The wrong ones pass a loose allclose; the right one fails a tight one; two bounds tell them apart."""
    lines = [line.split() for line in script("snippets.validation.equivalence_candidates").stdout.splitlines()[2:]]
    verdicts = {(name, dtype): (loose, default, check) for name, dtype, loose, default, *_, check in lines}
    assert verdicts == {
        ("rounds_once", "bfloat16"): ("passes", "fails", "passes"),
        ("misses_columns", "bfloat16"): ("passes", "fails", "passes"),
        ("never_stores", "bfloat16"): ("passes", "fails", "fails"),
        ("only_at_target", "bfloat16"): ("passes", "fails", "fails"),
        ("rounds_once", "float32"): ("passes", "passes", "passes"),
        ("misses_columns", "float32"): ("passes", "fails", "fails"),
        ("never_stores", "float32"): ("passes", "fails", "fails"),
        ("only_at_target", "float32"): ("passes", "fails", "fails"),
    }
    shares = {(name, dtype): (float(largest), float(rms)) for name, dtype, *_, largest, rms, _ in lines}
    largest, rms = shares["only_at_target", "bfloat16"]
    assert largest < 1 < rms, "the page's story"
