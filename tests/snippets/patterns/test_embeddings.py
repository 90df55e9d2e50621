"""Embeddings: every level that runs here agrees with float64, forward and backward, in fp32 and bf16."""

import pytest
import torch

from snippets.patterns.embeddings import COMPONENTS, drawn, tied, untied, update
from tests.snippets.patterns.components import DEVICE, problems, reference_is_the_formula, slow_or_other


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_all_levels_agree(component, dtype: torch.dtype) -> None:
    left_out = slow_or_other(component, COMPONENTS, dtype)
    found, nothing = problems(component, component.shapes["tiny"], dtype, left_out)
    assert found == nothing


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_the_reference_is_the_formula(component) -> None:
    reference_is_the_formula(component, component.shapes["tiny"])


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam])
def test_an_update_with_a_sparse_gradient_leaves_all_other_rows_alone(optimizer: type[torch.optim.Optimizer]) -> None:
    ids = torch.tensor([1, 5, 5], device=DEVICE)
    weight = torch.randn(8, 4, device=DEVICE).requires_grad_()
    before = weight.detach().clone()
    update(weight, optimizer([weight], lr=0.1), ids, torch.ones(3, 4, device=DEVICE), sparse=True)
    moved = (weight.detach() != before).any(-1)
    assert moved.nonzero()[:, 0].tolist() == [1, 5]
    assert weight.grad is None


def test_sparse_and_dense_gradients_give_the_same_step() -> None:
    ids, incoming = torch.tensor([1, 5, 5], device=DEVICE), torch.randn(3, 4, device=DEVICE)
    start = torch.randn(8, 4, device=DEVICE)
    weights = [start.clone().requires_grad_() for _ in range(2)]
    for weight, sparse in zip(weights, (True, False), strict=True):
        update(weight, torch.optim.SGD([weight], lr=0.1), ids, incoming, sparse)
    torch.testing.assert_close(*weights)


def test_a_tied_table_gets_the_gradients_of_both_uses() -> None:
    weight = torch.randn(16, 8, device=DEVICE).requires_grad_()
    head = weight.detach().clone().requires_grad_()
    ids, target = torch.randint(16, (2, 32), device=DEVICE)
    (together,) = torch.autograd.grad(tied(ids, target, weight), weight)
    torch.testing.assert_close(together, sum(torch.autograd.grad(untied(ids, target, weight, head), (weight, head))))


def test_few_tokens_are_frequent() -> None:
    torch.manual_seed(0)
    ids = drawn((4096,), 1000, DEVICE)
    assert 0 <= ids.min() <= ids.max() < 1000
    assert (ids < 125).float().mean() > 0.4
