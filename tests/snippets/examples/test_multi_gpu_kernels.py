"""Our kernels in a split model: gradients of the whole model, or one line that refuses."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import multi_gpu_kernels
from tests.snippets.reference.ranks import on_ranks

VARIES = {"kernels": r"\d+e-0\d"}  # rounding that a processor decides: see tests/benchmarks/captures.py


@pytest.fixture(scope="module")
def printed(script: Callable) -> str:
    done = script("snippets.examples.multi_gpu_kernels", "cpu")
    assert not done.returncode, done.stderr
    return done.stdout


def off(name: str, printed: str) -> float:
    return float(re.search(rf"{re.escape(name)}: gradients off by (\S+)", printed)[1])


@pytest.mark.parametrize("name", ["FSDP2 in fp32, kernels", "tensor parallel, MLP and attention"])
def test_gradients_are_those_of_the_whole_model(name: str, printed: str) -> None:
    assert off(name, printed) < 1e-5


def distances() -> list[float]:
    """Of the gradients with FSDP2 and with tensor parallel from those of the whole model."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tokens = torch.randint(multi_gpu_kernels.SIZES["vocab_size"], (ranks, 32))
    right = multi_gpu_kernels.gradients_of(multi_gpu_kernels.library, tokens, split=False)
    split = multi_gpu_kernels.CASES["tensor parallel, MLP and attention"]
    found = multi_gpu_kernels.gradients_of(multi_gpu_kernels.whole, tokens[rank : rank + 1], split=False)
    return [
        multi_gpu_kernels.distance(these, right)
        for these in (found, multi_gpu_kernels.gradients_of(split, tokens, split=True))
    ]


def test_gradients_are_those_of_the_whole_model_on_four_ranks(tmp_path: Path) -> None:
    assert max(max(off) for off in on_ranks(distances, 4, tmp_path)) < 1e-5


def test_in_bf16_they_are_as_far_off_as_the_library_is(printed: str) -> None:
    assert off("FSDP2 in bf16, kernels", printed) < 3 * off("FSDP2 in bf16, library", printed)


@pytest.mark.parametrize("name", ["norm", "loss"])
def test_a_dtensor_is_refused(name: str, printed: str) -> None:
    assert re.search(
        rf"tensor parallel, {name}: \w*Error: kernels_|tensor parallel, {name}: \w*Error: Operator", printed
    )
