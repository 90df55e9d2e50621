"""What is counted by hand is what PyTorch counts."""

import pytest
import torch
import torch.nn.functional as F

from snippets.patterns.compute_intensity import empty
from snippets.patterns.compute_intensity_decode import converted
from snippets.patterns.compute_intensity_layers import counted, decode_attention, elementwise, linear


def test_attention_of_one_query_is_counted_by_both():
    batch, length, heads, size = 2, 512, 8, 64
    q, k = empty(batch, heads, 1, size), empty(batch, heads, length, size)

    def scores_and_sums(q, k):  # the matrix of scores stays in registers: it is no input and no output
        return (q @ k.transpose(-1, -2)) @ k

    work = decode_attention(batch, length, heads, 1, size)
    assert counted(scores_and_sums, q, k).flops == work.flops
    assert work.bytes == 2 * k.nbytes + 2 * q.nbytes


def test_views_move_nothing_and_an_in_place_operation_moves_as_much():
    x = empty(64, 64)
    assert counted(lambda x: x.t().view(-1, 2, 64)[0], x).bytes == 0
    assert counted(F.relu, x).bytes == 2 * x.nbytes == elementwise(64 * 64).bytes


def test_converting_before_the_product_moves_five_bytes_for_each_weight():
    x, small, scale = empty(1, 4096), empty(4096, 4096, dtype=torch.int8), empty(4096, dtype=torch.float32)
    assert counted(converted, x, small, scale).bytes == pytest.approx(linear(1, 4096, 4096, weight=5).bytes, rel=0.01)
