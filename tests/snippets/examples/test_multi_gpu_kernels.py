"""Our kernels in a split model: gradients of the whole model, or one line that refuses."""

import functools
import re

import pytest

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from tests.snippets.examples.test_multi_gpu import torchrun

VARIES = {"kernels": r"\d+e-0\d"}  # rounding that a processor decides: see tests/benchmarks/captures.py


@functools.cache
def printed() -> str:
    return torchrun(2, "multi_gpu_kernels", "--work")


def off(name: str) -> float:
    return float(re.search(rf"{re.escape(name)}: gradients off by (\S+)", printed())[1])


@pytest.mark.parametrize("name", ["FSDP2 in fp32, kernels", "tensor parallel, MLP and attention"])
def test_gradients_are_those_of_the_whole_model(name: str) -> None:
    assert off(name) < 1e-5


def test_in_bf16_they_are_as_far_off_as_the_library_is() -> None:
    assert off("FSDP2 in bf16, kernels") < 3 * off("FSDP2 in bf16, library")


@pytest.mark.parametrize("name", ["norm", "loss"])
def test_a_dtensor_is_refused(name: str) -> None:
    assert re.search(
        rf"tensor parallel, {name}: \w*Error: kernels_|tensor parallel, {name}: \w*Error: Operator", printed()
    )
