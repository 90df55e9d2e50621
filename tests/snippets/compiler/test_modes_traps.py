"""Each trap of a CUDA graph springs, and its mend mends."""

import pytest
import torch

from snippets.compiler.modes_traps import kept_memory

DEVICE = torch.device("cuda")
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="a CPU has no CUDA graphs")


def test_without_a_gpu_the_script_says_so(script):
    assert "none of these traps exists here" in script("snippets.compiler.modes_traps", "cpu").stdout


@GPU
@torch.no_grad()
def test_memory_of_graphs_is_kept_until_a_reset():
    held, recorded, after = kept_memory(DEVICE, "reduce-overhead", [2048, 1024])
    assert recorded == 2 and held[0] > 0 and after < held[-1]
    assert kept_memory(DEVICE, "default", [2048, 1024])[:2] == ([0, 0], 0)


@GPU
def test_large_sizes_first_keep_less(script):
    """What the page advises: a large graph's memory serves the small ones, and not the other way round."""
    printed = script("snippets.compiler.modes_traps").stdout  # alone: what others hold is not counted
    down, up = (
        next(line.removeprefix(name).split() for line in printed.splitlines() if line.startswith(name + "  "))
        for name in ("reduce-overhead, large first", "reduce-overhead, small first")
    )
    assert int(down[3]) < int(up[3])
