"""Under fp16 the compiled backward overflows where eager does not."""

import torch
from torch import Tensor

from snippets.compiler.training_autocast import outside


def test_under_fp16_it_overflows_where_eager_does_not():
    def gradient(function) -> Tensor:
        x, weight = (torch.ones(4, 4, requires_grad=True) for _ in range(2))
        with torch.autocast("cpu", torch.float16):
            y = function(x, weight)
        (gradient,) = torch.autograd.grad(1e5 * y.sum(), x)
        return gradient

    torch.compiler.reset()
    assert (gradient(outside) == 4e5).all()
    assert gradient(torch.compile(outside, backend="aot_eager")).isinf().all()
