"""Each way to say a rule is the formula, and each mistake is not."""

import pytest
import torch

from snippets.patterns.attention_masks_agreement import comparisons

WRONG = {  # what the page shows as mistakes
    "window(7): 6 before the token",
    "bias with the other sign",
    "is_causal=True alone",
    "k and v by repeat()",
    "is_causal=True",
    "no mask",
}
pytestmark = pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile")


def test_every_way_is_the_formula_and_every_mistake_is_not() -> None:
    torch.manual_seed(0)
    mistakes = set()
    for rule, expected, ways in comparisons():
        for way, result in ways.items():
            off = (result - expected).abs().max()
            assert (off > 1e-3) if way in WRONG else (off < 1e-12), (rule, way, off)
            mistakes |= {way} & WRONG
    assert mistakes == WRONG
