"""Two functions with a backward of their own: the loss from some rows at a time, and linear layers of one input."""

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.examples.llama_kernels import mean_loss


# --8<-- [start:loss]
class LinearCrossEntropy(torch.autograd.Function):
    """mean_loss(x @ weight.T, target), some rows at a time: the logits of all rows never exist together.

    A row's loss and gradient need that row's logits only, so nothing is approximated. The gradient of the weight is a
    sum over rows: its parts are added in fp32. It is computed with the loss; the backward multiplies by what comes in.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, target: Tensor, rows: int) -> Tensor:
        count = (target != -100).sum()
        dx, dweight = torch.empty_like(x), torch.empty_like(weight, dtype=torch.promote_types(x.dtype, torch.float32))
        total = torch.zeros((), dtype=dweight.dtype, device=x.device)
        for start in range(0, len(x), rows):
            here = slice(start, start + rows)
            part, classes = x[here], target[here]
            with torch.enable_grad():
                logits = (part.detach() @ weight.detach().T).requires_grad_()
                loss = mean_loss(logits, classes, reduction="sum")
            (dlogits,) = torch.autograd.grad(loss, logits)
            total += loss.detach()
            del logits, loss
            torch.mm(dlogits, weight, out=dx[here])
            add_product(dweight, dlogits.T, part, beta=float(start > 0))
            del dlogits
        ctx.save_for_backward(dx, dweight, count)
        ctx.dtype = weight.dtype
        return total / count

    @staticmethod
    def backward(ctx, dloss: Tensor) -> tuple[Tensor, Tensor, None, None]:
        dx, dweight, count = ctx.saved_tensors
        scale = dloss / count
        # one rounding, no fp32 copy beside it
        return dx * scale, torch.mul(dweight, scale, out=torch.empty_like(dweight, dtype=ctx.dtype)), None, None


def add_product(total: Tensor, a: Tensor, b: Tensor, beta: float) -> None:
    """total = beta * total + a @ b, in the dtype of the total; with beta = 0 nobody reads what it was."""
    if a.is_cuda and a.dtype != total.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, beta=beta, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype), beta=beta)


# --8<-- [end:loss]


# --8<-- [start:projections]
class Projections(torch.autograd.Function):
    """Several linear layers of one input. The products of the backward add to the input's gradient themselves."""

    @staticmethod
    def forward(ctx, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *weights)
        return tuple(F.linear(x, weight) for weight in weights)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, ...]:
        x, *weights = ctx.saved_tensors
        x, (first, *others) = x.flatten(0, 1), (grad.flatten(0, 1) for grad in grads)
        dx = first @ weights[0]
        for grad, weight in zip(others, weights[1:], strict=True):
            dx.addmm_(grad, weight)  # autograd would write each product, and add them in further kernels
        return dx.view(ctx.saved_tensors[0].shape), *(grad.T @ x for grad in (first, *others))


# --8<-- [end:projections]
