"""The shapes are those of Llama; and the small model that the other tests of large models share."""

import functools

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import large_models_shape
from snippets.examples.hf_llama import LLAMA_1B, LLAMA_8B
from snippets.examples.large_models_shape import LLAMA_3B, SMALL
from snippets.examples.llama_model import make_model

SHAPE = large_models_shape.shape_of(SMALL)
TOKENS = torch.randint(SHAPE.words, (4, 48), generator=torch.Generator().manual_seed(0))


@functools.cache
def model() -> nn.Module:
    torch.manual_seed(0)
    return make_model(SMALL, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(("sizes", "billions"), [(LLAMA_1B, 1.236), (LLAMA_3B, 3.213), (LLAMA_8B, 8.030)])
def test_the_shapes_are_those_of_llama(sizes: dict, billions: float) -> None:
    assert large_models_shape.shape_of(sizes).parameters / 1e9 == pytest.approx(billions, abs=1e-3)
