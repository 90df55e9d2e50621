"""Who gets a graph: a buffer that is changed, not an argument."""

import pytest
import torch

from snippets.compiler.modes_traps_skipped import Counter, count, skipped

DEVICE = torch.device("cuda")
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="a CPU has no CUDA graphs")


@GPU
@torch.no_grad()
@torch.compiler.config.patch(force_disable_caches=True)
def test_an_argument_that_is_changed_gets_no_graph_and_a_buffer_does():
    x, total = (torch.ones(4, device=DEVICE) for _ in range(2))
    assert skipped(count, total, x).startswith("skipping cudagraphs due to mutated inputs (1 instances)")
    assert skipped(Counter().to(DEVICE), x) == "1 graph recorded"
    torch._dynamo.mark_static_address(total, guard=False)
    assert skipped(count, total, x) == "1 graph recorded"
