"""Gathers in fp8 send half of the bytes, and scales computed at once send one message."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")
pytest.importorskip("torchao", reason="a development dependency: constraints.txt names its version")

from snippets.examples import multi_gpu_fp8
from tests.snippets.reference.ranks import on_ranks

VARIES = {"fp8": r"\de-0\d"}  # rounding that a processor decides: see tests/benchmarks/captures.py


def cases() -> dict[str, list]:
    """Of each case: bytes gathered, all-reduces, and how far its gradients are from those in fp32."""
    torch.set_num_threads(1)
    torch.manual_seed(1 + dist.get_rank())
    tokens = torch.randint(multi_gpu_fp8.SIZES["vocab_size"], (2, 32))
    right = multi_gpu_fp8.observe(multi_gpu_fp8.in_fp32, False, tokens)["gradients"]
    found = {name: multi_gpu_fp8.observe(*case, tokens) for name, case in multi_gpu_fp8.CASES.items()}
    return {
        name: [seen["gathered"], seen["all-reduces"], multi_gpu_fp8.distance(seen["gradients"], right)]
        for name, seen in found.items()
    }


@pytest.mark.parametrize("ranks", [2, 4])
def test_fp8_gathers_halve_the_bytes_of_linear_layers(ranks: int, tmp_path: Path) -> None:
    found = on_ranks(cases, ranks, tmp_path)[0]
    (whole, none, near), (same, _, noise), (half, many, far), (again, one, apart) = found.values()
    layers, linears = 2, 7
    weights = 64 * 64 * 4 + 3 * 64 * 128  # of one layer, in elements: queries, keys, values, output; MLP
    assert whole == same and whole - half == layers * weights * 2  # a byte less for each, gathered twice
    assert (half, none, many, one) == (again, 0, 2 * layers * linears, 1)
    assert near < noise / 5 and far < 2 * noise and apart == pytest.approx(far)
