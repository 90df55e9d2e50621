"""Embeddings: every level that runs here agrees with float64, forward and backward, in fp32 and bf16."""

import pytest
import torch

from snippets.patterns.compare_levels import compare
from snippets.patterns.embeddings import COMPONENTS, drawn, tied, untied, update

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_GPU = DEVICE.type == "cuda"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_all_levels_agree(component, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    left_out = set()
    if not ON_GPU:
        left_out = {5} if component is COMPONENTS[-1] else {3, 5}  # the compiler takes seconds, so once
    if dtype == torch.bfloat16:
        left_out |= {3} if ON_GPU else {3, 4}  # Triton's interpreter cuts off to bf16 where a GPU rounds
    functions = {str(number): make() for number, make in component.levels.items() if number not in left_out}
    inputs = component.inputs(component.shapes["tiny"], dtype, DEVICE)
    found = compare(functions, inputs, component.gradients, component.reference, str(component.yardstick), rounds=0)
    assert {line.name: line.problem for line in found.lines} == dict.fromkeys(functions, "")


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_the_reference_is_the_formula(component) -> None:
    """Level 0 is what the page shows as the formula; in float64 it is the reference, to rounding."""
    inputs = component.inputs(component.shapes["tiny"], torch.float64, torch.device("cpu"))
    expected = component.reference(*inputs.values())
    torch.testing.assert_close(component.levels[0]()(*inputs.values()), expected, rtol=1e-12, atol=1e-12)


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
