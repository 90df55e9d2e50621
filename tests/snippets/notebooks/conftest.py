"""A small experiment for the tests of its parts."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from snippets.notebooks.triton_optimization_experiment import Experiment


@pytest.fixture
def experiment() -> Callable[..., Experiment]:
    """SiLU in two variants, with what a test changes."""
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    x = x.to("cuda" if torch.cuda.is_available() else "cpu")
    variants = {"plain": F.silu, "written out, compiled": lambda x: x * torch.sigmoid(x)}
    return lambda **changed: Experiment(**{"name": "silu", "inputs": {"x": x}, "variants": variants} | changed)
