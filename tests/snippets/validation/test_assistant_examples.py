"""The page's two modules: what is found in them, and that the mended one is the same function."""

from functools import partial

import pytest
import torch

from snippets.validation.assistant import find, validate
from snippets.validation.assistant_examples import FusedGPT, forecaster, gpt
from tests.snippets.validation.planted.seen import evidence, faults

VARIES = {"validate": r"[\d.]+|faster|slower|as fast"}  # measured: see tests/benchmarks/captures.py

pytestmark = pytest.mark.usefixtures("one_core")


def kinds(factory):
    return {one.kind for one in faults(find(*evidence(factory)))} - {"precision"}  # by size, on a GPU


def test_what_is_found_in_the_gpt():
    assert kinds(gpt) == {"attention", "projections", "cross-entropy", "cuda-graph"}


def test_what_is_found_in_the_forecaster():
    expected = {"graph-break", "recompilation", "norm", "kept-graph", "small-kernels", "sync"}
    assert kinds(partial(forecaster, 12)) == expected  # fewer steps than on the page, to be quick


def test_the_mended_gpt_is_the_same_function_and_has_fewer_findings(untimed):
    module, *inputs = gpt()
    torch.manual_seed(0)
    mended, *_ = gpt(FusedGPT)
    assert validate(module, mended, *inputs, rounds=5).right
    assert not kinds(lambda: (mended, *inputs)) & {"attention", "projections"}
