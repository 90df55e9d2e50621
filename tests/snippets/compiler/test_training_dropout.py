"""Which of two gradients is wrong under a budget, and that a checkpoint has one mask."""

import pytest
import torch
from torch import Tensor

from snippets.compiler.training_checkpointing import selective, whole
from snippets.compiler.training_dropout import dropped


@pytest.mark.filterwarnings("ignore:Detected that context_fn")
def test_differences_in_float64_show_which_gradient_is_wrong():
    """The loss itself is differentiable and right at every budget; only backward's mask differs."""
    torch.manual_seed(0)
    x, weight, step = (torch.randn(shape, dtype=torch.float64) for shape in ((16, 8), (8, 8), (8, 8)))

    def slopes(budget: float) -> tuple[float, float]:
        torch.compiler.reset()
        with torch._functorch.config.patch(activation_memory_budget=budget):
            compiled = torch.compile(dropped, backend="aot_eager_decomp_partition")

            def loss(distance: float) -> tuple[torch.Tensor, torch.Tensor]:
                torch.manual_seed(1)
                at = (weight + distance * step).requires_grad_()
                return compiled(x, at), at

            ahead, behind = (loss(distance)[0].item() for distance in (1e-6, -1e-6))
            gradient = torch.autograd.grad(*loss(0.0))[0]
        return (gradient * step).sum().item(), (ahead - behind) / 2e-6

    by_backward, by_differences = slopes(1.0)
    assert by_backward == pytest.approx(by_differences, rel=1e-4)
    wrong, right = slopes(0.0)
    assert right == pytest.approx(by_differences, rel=1e-4)
    assert abs(wrong - right) > abs(right) / 10


def test_dropout_in_a_checkpoint_has_one_mask():
    torch.manual_seed(0)
    x, weight = torch.randn(64, 32), torch.randn(32, 32, requires_grad=True)

    def gradient(run) -> Tensor:
        torch.compiler.reset()
        torch.manual_seed(1)
        function = torch.compile(lambda x, weight: run(lambda x: dropped(x, weight), x), backend="aot_eager")
        return torch.autograd.grad(function(x, weight), weight)[0]

    plain = gradient(lambda function, x: function(x))
    for run in (whole, selective):
        torch.testing.assert_close(gradient(run), plain)
