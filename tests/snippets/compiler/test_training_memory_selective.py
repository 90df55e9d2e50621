"""What a selective checkpoint repeats depends on its list, and dropout keeps its mask in it, as under no budget."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from snippets.compiler import training_memory_selective as page
from snippets.compiler.training_checkpointing import PRODUCTS
from snippets.compiler.training_partition import partition

MATMULS = torch.ops.aten.mm.default, torch.ops.aten.addmm.default
pytestmark = pytest.mark.filterwarnings("ignore:Detected that context_fn")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def blocks(bias: bool = True, dropout: float = 0.0) -> nn.ModuleList:
    torch.manual_seed(0)
    layers = (nn.Linear(8, 16, bias), nn.GELU(), nn.Dropout(dropout), nn.Linear(16, 8, bias), nn.Tanh())
    return nn.ModuleList(nn.Sequential(*layers) for _ in range(2))


def repeated(kept: list, bias: bool, monkeypatch: pytest.MonkeyPatch) -> int:
    """Matmuls in backward beyond the two for the gradients of each layer, of which x needs none of the first's."""
    monkeypatch.setattr(page, "contexts", partial(create_selective_checkpoint_contexts, kept))
    _, backward = partition(page.loss_of, blocks(bias), torch.randn(4, 8))
    return sum(node.target in MATMULS for node in backward.graph.nodes) - (2 * 4 - 1)


def test_a_layer_with_bias_is_repeated_where_the_list_lacks_addmm(monkeypatch):
    """The last layer of a block is repeated, too: tanh reads its result."""
    without = [operation for operation in page.KEPT if operation is not torch.ops.aten.addmm.default]
    assert set(without) == set(PRODUCTS)  # the list for layers without bias
    assert repeated(page.KEPT, True, monkeypatch) == 0
    assert repeated(without, True, monkeypatch) == 4
    assert repeated(without, False, monkeypatch) == 0


def test_dropout_has_one_mask():
    model, x = blocks(dropout=0.5), torch.randn(4, 8)
    found = []
    for function in (page.loss_of, torch.compile(page.loss_of, backend="aot_eager")):
        torch.manual_seed(1)
        loss = function(model, x)
        found.append([loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))])
    torch.testing.assert_close(*found)


def dropout(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5)


def stochastic_depth(x: Tensor) -> Tensor:
    return x * x.new_empty(len(x), 1).bernoulli_(0.5)


def noise(x: Tensor) -> Tensor:
    return x * torch.randn_like(x)


@pytest.mark.parametrize(
    "drawn, backend",
    ((dropout, "inductor"), (stochastic_depth, "aot_eager_decomp_partition"), (noise, "aot_eager_decomp_partition")),
)
def test_under_a_budget_backward_draws_other_numbers(drawn: Callable[[Tensor], Tensor], backend: str):
    """The page says so. Fixed in PyTorch? Then its warning goes."""

    def dropped(x: Tensor, weight: Tensor) -> Tensor:
        return (drawn((x @ weight).sigmoid()) @ x.mT).sum()

    found = []
    for budget in (1.0, 0.9):
        torch.manual_seed(0)
        x, weight = torch.randn(64, 32), torch.randn(32, 32, requires_grad=True)
        torch.compiler.reset()
        with torch._functorch.config.patch(activation_memory_budget=budget):
            loss = torch.compile(dropped, backend=backend)(x, weight)
        found.append((loss.detach(), *torch.autograd.grad(loss, weight)))
    (loss, gradient), (same, other) = found
    assert torch.equal(loss, same)
    assert (other - gradient).norm() > gradient.norm() / 10
