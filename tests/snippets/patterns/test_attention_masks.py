"""What the page says of alignment holds, and the script prints it."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from snippets.patterns import attention_masks as page
from snippets.patterns.attention_masks import seen
from tests.benchmarks.captures import sections

# ---- alignment ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
@pytest.mark.parametrize("queries", [1, 3, 6])
def test_the_flag_is_aligned_at_the_upper_left(backend: SDPBackend, queries: int) -> None:
    with sdpa_kernel(backend):
        found = seen(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), queries, 6)
    assert torch.equal(found, torch.ones(queries, 6, dtype=torch.bool).tril())


# ---- refusals -------------------------------------------------------------------------------------------------------


def test_the_script_prints_what_the_page_shows(script) -> None:
    printed = sections(script(page.__name__, "cpu").stdout)
    assert list(printed) == ["alignment", "rules", "agreement", "rounding", "refuses"]
    assert " or " not in printed["rules"]
