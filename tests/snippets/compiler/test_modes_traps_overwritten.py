"""A result is overwritten, at first with an error."""

import pytest
import torch

from snippets.compiler import modes_traps_overwritten
from snippets.compiler.modes_traps_overwritten import kept_results

DEVICE = torch.device("cuda")
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="a CPU has no CUDA graphs")


@GPU
@torch.no_grad()
def test_a_result_is_overwritten_with_an_error_at_first_and_silently_later():
    assert modes_traps_overwritten.overwritten_by_hand(DEVICE) == (2, 20)
    assert "overwritten by a subsequent run" in kept_results(DEVICE)
    assert kept_results(DEVICE, warm=3) == "sum 96", "each of the four is the last"
    assert "overwritten by a subsequent run" in kept_results(DEVICE, before=torch.compiler.cudagraph_mark_step_begin)
    for warm in (0, 3):
        assert kept_results(DEVICE, warm, torch.clone) == "sum 48"
