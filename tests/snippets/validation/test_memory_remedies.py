"""A remedy changes no gradient; and what attention and the loss keep."""

from collections.abc import Callable

import pytest
import torch

from snippets.validation.memory import peak_of, record
from snippets.validation.memory_predicted import REMEDIES
from snippets.validation.memory_remedies import explicit, sdpa, whole, with_remedies
from snippets.validation.memory_step import loss_in_fp32

pytestmark = pytest.mark.usefixtures("one_core")


@pytest.mark.parametrize("name", REMEDIES)
def test_a_remedy_changes_no_gradient_and_no_parameter(name, small_model):
    model, batch = small_model
    other = with_remedies(model, **REMEDIES[name])
    assert all(mine is theirs for mine, theirs in zip(other.parameters(), model.parameters(), strict=True))
    gradients = [torch.autograd.grad(loss_in_fp32(m, *batch), list(model.parameters())) for m in (model, other)]
    torch.testing.assert_close(*gradients)


def test_scores_are_kept_in_fp32_under_autocast_and_in_float64_for_a_reference():
    q, k, v = torch.randn(3, 1, 2, 8, 4)
    with torch.autocast("cpu", torch.bfloat16):
        kept: list[torch.dtype] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.dtype), t)[1], lambda t: t):
            found = explicit(q.requires_grad_(), k, v)
    assert found.dtype == torch.bfloat16 and torch.float32 in kept
    exact = explicit(*(t.double() for t in (q, k, v)))
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact, sdpa(*(t.double() for t in (q, k, v))), rtol=0, atol=1e-14)


@pytest.mark.skipif(not hasattr(torch.nn, "LinearCrossEntropyOptions"), reason="came with torch 2.13")
def test_the_loss_of_pytorch_with_its_product_makes_parts_only_if_it_is_told_to():
    x, head = torch.randn(512, 64), torch.nn.Linear(64, 1000, bias=False)
    targets = torch.randint(1000, (512,))

    def peak(loss: Callable[..., torch.Tensor], **options: object) -> int:
        head.zero_grad()
        return peak_of(record(lambda: loss(x, head.weight, targets, **options).backward(), head)).nbytes

    together = torch.nn.functional.linear_cross_entropy
    assert peak(together) == peak(whole)
    assert peak(together, options=torch.nn.LinearCrossEntropyOptions()) < 0.5 * peak(whole)
