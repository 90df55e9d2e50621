"""snippets/validation/memory_allocator.py: what its sections say of a GPU; without one it says so."""

import re

import pytest
import torch

from snippets.validation import memory_allocator
from snippets.validation.memory_allocator import EXPANDABLE, MB, in_a_process, reserved

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="the allocator of a GPU")


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is said without a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert memory_allocator.main([]) == 0
    assert re.fullmatch("no CUDA GPU: .*\n", capsys.readouterr().out)


@needs_gpu
def test_what_is_deleted_stays_reserved_until_empty_cache():
    start, made, deleted, emptied, end = (found for _, found, _ in reserved())
    assert made.allocated - start.allocated >= 1000 * MB
    assert deleted.allocated < made.allocated - 900 * MB and deleted.reserved == made.reserved
    assert emptied.reserved < deleted.reserved - 900 * MB and end.reserved <= emptied.reserved


@needs_gpu
@pytest.mark.parametrize("program", memory_allocator.PROGRAMS)
def test_expandable_segments_reserve_little_more_than_is_used(program):
    plain, expandable = ([int(n.replace(",", "")) for n in in_a_process(program, s).split()] for s in ("", EXPANDABLE))
    assert plain[0] == pytest.approx(expandable[0], rel=0.05), "the same tensors, rounded up to blocks of another size"
    assert expandable[1] < 1.15 * max(expandable[0], expandable[2]) < plain[1]
