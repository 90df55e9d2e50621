"""Kernels: large products in fp32."""

import pytest
import torch
from torch import nn

from snippets.validation.assistant.found import find
from tests.snippets.validation.planted.seen import evidence

pytestmark = pytest.mark.usefixtures("one_core")


def test_large_fp32_products_are_a_finding_and_small_ones_a_note():
    wide = nn.Linear(1024, 2048, bias=False)
    for rows, weight in ((64, "note"), (1024, "finding")):
        found = [
            one for one in find(*evidence(lambda rows=rows: (wide, torch.randn(rows, 1024)))) if one.kind == "precision"
        ]
        assert [one.weight for one in found] == [weight]
