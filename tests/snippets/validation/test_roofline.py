"""The ceilings: the right bytes over the right time, by kernels that move what they claim to move."""

import pytest
import torch

from snippets.validation import roofline
from snippets.validation.roofline import MIXES, attainable, bandwidth, best, matrix_rate, ridge, stream, ways_to_move
from snippets.validation.timing import Timing

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
with_triton = pytest.mark.skipif(roofline.triton is None, reason="needs Triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def took(seconds: float) -> Timing:
    return Timing(seconds, seconds, seconds, 1)


def test_the_fastest_way_is_the_ceiling():
    ceiling = best({"slow": took(2.0), "fast": took(0.5)}, work=10.0)
    assert (ceiling.rate, ceiling.by, ceiling.timing) == (20.0, "fast", took(0.5))


def test_attainable_is_the_larger_of_two_times():
    assert attainable(flops=1e12, moved=1e9, matrix=1e12, memory=1e12) == 1.0
    assert attainable(flops=1e9, moved=1e12, matrix=1e12, memory=1e12) == 1.0
    assert attainable(flops=0, moved=4e12, matrix=1e15, memory=4e12) == 1.0


def test_the_bounds_meet_at_the_ridge():
    matrix, memory = 8e14, 4e12
    assert ridge(matrix, memory) == 200
    moved = 1e9
    flops = ridge(matrix, memory) * moved
    assert attainable(flops, 0, matrix, memory) == attainable(0, moved, matrix, memory)


@pytest.mark.parametrize("mix", MIXES)
def test_every_way_moves_what_its_mix_says(mix):
    """PyTorch's kernels everywhere; Triton's where ways_to_move offers them, on a GPU."""
    a, b, out = (torch.randn(10_000, device=DEVICE) for _ in range(3))
    expected = {"read": a.sum(), "copy": a, "triad": a + b}[mix]
    for name, call in ways_to_move(mix, a, b, out).items():
        out.fill_(float("nan"))
        returned = call()
        if name == "torch.sum":
            torch.testing.assert_close(returned, expected)
        elif mix != "read":
            assert torch.equal(out, expected), name


@with_triton
@pytest.mark.parametrize("elements", [1, 1000, 2048, 5000])
@pytest.mark.parametrize("mix", MIXES)
def test_stream(mix, elements):
    """The Triton kernel, ragged sizes included; what lies beyond the end is left alone."""
    a, b, out = (torch.randn(elements + 64, device=DEVICE) for _ in range(3))
    before = out.clone()
    stream(mix, a[:elements], b[:elements], out[:elements], block=1024, warps=4)
    expected = before.clone()
    if mix == "read":  # one number a block: the largest (beyond the end counts as 0)
        blocks = a[:elements].split(1024)
        largest = [block.max() if len(block) == 1024 else block.max().clamp(min=0) for block in blocks]
        expected[: len(blocks)] = torch.stack(largest)
    else:
        expected[:elements] = a[:elements] + (b[:elements] if mix == "triad" else 0)
    assert torch.equal(out, expected)


def test_bandwidth_counts_every_byte_once(monkeypatch):
    """With each call taking one second the rate is the bytes."""
    monkeypatch.setattr(roofline, "measure", lambda calls, *_: {name: took(1.0) for name in calls})
    width = 2 if DEVICE.type == "cuda" else 4
    rates = {mix: ceiling.rate for mix, ceiling in bandwidth(DEVICE, 1000).items()}
    assert rates == {"read": 1000 * width, "copy": 2000 * width, "triad": 3000 * width}


def test_matrix_rate_counts_multiply_and_add(monkeypatch):
    monkeypatch.setattr(roofline, "measure", lambda calls, *_: {name: took(1.0) for name in calls})
    rates = {ceiling.rate for ceiling in matrix_rate(DEVICE, 16, torch.float32).values()}
    assert rates == {2 * 16**3}


@pytest.mark.skipif(torch.cuda.is_available(), reason="prints what a machine without a GPU prints")
def test_the_script(capsys, monkeypatch):
    monkeypatch.setattr(roofline, "measure", lambda calls, *_: {name: took(0.1) for name in calls})
    roofline.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["read", "copy", "triad", "calls"]
    assert lines[1].split()[1:] == ["2.7", "GB/s", "by", "Tensor.copy_"]
    assert "ridge point 8 FLOP/byte" in lines[3]


@gpu
def test_ceilings_of_a_gpu_are_below_any_datasheet():
    rates = {mix: ceiling.rate for mix, ceiling in bandwidth(DEVICE, 2**28).items()}
    assert all(0.1e12 < rate < 8e12 for rate in rates.values()), rates
    matrix = {mode: ceiling.rate for mode, ceiling in matrix_rate(DEVICE, 4096, torch.bfloat16).items()}
    assert set(matrix) == {"burst", "sustained"}
    assert all(1e12 < rate < 2.5e15 for rate in matrix.values()), matrix
