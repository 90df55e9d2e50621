"""What a GPU's allocator keeps of each program, by default and with expandable segments."""

import pytest
import torch

from snippets.validation.memory_allocator import EXPANDABLE, in_a_process

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="the allocator of a GPU")


def both(program: str) -> tuple[list[int], list[int]]:
    """What a program's tensors ask for, what is reserved, and what after empty_cache: by default and expandable."""
    lines = (in_a_process(program, settings).split() for settings in ("", EXPANDABLE))
    plain, expandable = ([int(number.replace(",", "")) for number in line] for line in lines)
    assert plain[0] == expandable[0], "the same tensors"
    return plain, expandable


@needs_gpu
def test_expandable_segments_grow_with_the_longest_step():
    plain, expandable = both("growing")
    assert expandable[1] < 1.15 * expandable[0] < plain[1] and plain[2] == expandable[2] == 0


@needs_gpu
def test_only_expandable_segments_give_back_what_is_free_inside():
    plain, expandable = both("holes")
    assert plain[2] == plain[1] and expandable[2] < 0.8 * plain[2]
