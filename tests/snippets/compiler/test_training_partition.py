"""What a memory budget may be, and from which version on a region has one."""

import pytest
import torch

from snippets.compiler.training_model import mlp, mlp_inputs
from snippets.compiler.training_partition import partition

VERSION = torch.torch_version.TorchVersion(torch.__version__)


def test_a_budget_is_a_share():
    with pytest.raises(Exception, match="valid ranges for memory budget"):
        partition(mlp, *mlp_inputs(), budget=2.0)


def test_the_budget_of_a_region_came_after_211():
    """The page says from which version on."""
    assert hasattr(torch.autograd.graph, "region_activation_memory_budget") == (VERSION >= (2, 13))
