"""What fuses is computed again in backward, and matrix products are kept."""

import pytest
import torch

from snippets.compiler.training_kept import work
from snippets.compiler.training_model import mlp, mlp_inputs
from snippets.compiler.training_partition import partition

VERSION = torch.torch_version.TorchVersion(torch.__version__)


@pytest.fixture(scope="module")
def of_mlp() -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    return partition(mlp, *mlp_inputs())


def test_products_are_kept_and_what_fuses_is_repeated(of_mlp):
    forward, backward = of_mlp
    saved = [node for node in forward.graph.output_node().args[0][1:] if work(node) is not None]
    assert "mm" in [node.name for node in saved]  # gate and value, in one tensor
    assert {"neg", "exp", "add_1", "div"} <= {node.name for node in backward.graph.nodes}  # silu, again
    assert not {"neg", "exp", "add_1", "div"} & {node.name for node in saved}


@pytest.mark.skipif((2, 12) <= VERSION < (2, 13), reason="the page speaks of 2.11 and of 2.13")
def test_versions_differ_in_the_derivative_of_silu(of_mlp):
    _, backward = of_mlp
    assert ("sigmoid" in {node.name for node in backward.graph.nodes}) == (VERSION >= (2, 13))
