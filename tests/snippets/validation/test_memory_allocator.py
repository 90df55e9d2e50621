"""What the allocator of a GPU does; without one, that the script says so."""

import pytest
import torch

from snippets.validation import memory_allocator
from snippets.validation.memory_allocator import empty, main, now, started_anew

CUDA = torch.cuda.is_available()
MiB = 2**20


@pytest.mark.skipif(CUDA, reason="there is a GPU")
def test_without_a_gpu_the_script_says_so(capsys):
    assert main([]) == 0
    assert "no CUDA GPU" in capsys.readouterr().out


@pytest.mark.skipif(not CUDA, reason="needs the allocator of a GPU")
class TestOnGPU:
    def test_empty_cache_returns_whole_segments_only(self):
        started_anew()
        before = now()
        tensors = [empty(64) for _ in range(4)]
        del tensors[1:]
        assert now().idle - before.idle >= 3 * 64 * MiB
        torch.cuda.empty_cache()
        assert now().idle == 0 and now().allocated - before.allocated == 64 * MiB
        fives = [empty(5) for _ in range(16)]
        fives = fives[::4]
        torch.cuda.empty_cache()
        assert now().free >= 12 * 5 * MiB  # one in each segment is used
        del tensors, fives

    def test_growing_sizes_reserve_more_than_they_use_but_not_in_expandable_segments(self):
        plain = memory_allocator.process("growing")
        expandable = memory_allocator.process("growing", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
        reserved = [int(text.split(":")[1].split()[1].replace(",", "")) for text in (plain, expandable)]
        assert reserved[1] < 0.7 * reserved[0]

    def test_the_message_of_an_allocation_that_fails(self):
        text = memory_allocator.process("message")
        assert "Tried to allocate 1024.00 MiB" in text or "Tried to allocate 1.00 GiB" in text
        assert "reserved by PyTorch but unallocated" in text
