"""Ways to mask a softmax, and to write a loss, with what each does where it matters.

Run `python -m snippets.patterns.softmax_and_loss_mistakes`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


# --8<-- [start:masks]
def minus_infinity(x: Tensor, keep: Tensor) -> Tensor:
    return F.softmax(x.masked_fill(~keep, -torch.inf), -1)


def smallest_number(x: Tensor, keep: Tensor) -> Tensor:
    return F.softmax(x.masked_fill(~keep, torch.finfo(x.dtype).min), -1)


def minus_1e9(x: Tensor, keep: Tensor) -> Tensor:
    return F.softmax(x.masked_fill(~keep, -1e9), -1)


def minus_10(x: Tensor, keep: Tensor) -> Tensor:
    return F.softmax(x - 10.0 * ~keep, -1)


def after_the_softmax(x: Tensor, keep: Tensor) -> Tensor:
    return F.softmax(x, -1) * keep


# --8<-- [end:masks]


# --8<-- [start:losses]
def log_of_softmax(logits: Tensor, target: Tensor) -> Tensor:
    """The probability of the target is rounded to zero first, and its logarithm is infinite."""
    return -torch.log(F.softmax(logits, -1)).gather(1, target[:, None]).mean()


def log_softmax(logits: Tensor, target: Tensor) -> Tensor:
    return -F.log_softmax(logits, -1).gather(1, target[:, None]).mean()


# --8<-- [end:losses]

MASKS = (minus_infinity, smallest_number, minus_1e9, minus_10, after_the_softmax)
LOSSES = (log_of_softmax, log_softmax)
SCORES = torch.tensor([1.0, 2.0, 3.0, 12.0])
SOME, NONE = torch.tensor([True, True, True, False]), torch.tensor([False] * 4)
LOGITS, TARGET = torch.tensor([[0.0, -150.0]]), torch.tensor([1])


def weights(mask: object, keep: Tensor, dtype: torch.dtype = torch.float32) -> str:
    """The four weights, or the name of what is raised."""
    try:
        return " ".join(f"{weight:.2f}" for weight in mask(SCORES.to(dtype), keep).tolist())  # type: ignore[operator]
    except RuntimeError as error:
        return type(error).__name__  # value cannot be converted to type at::Half without overflow


def loss_and_gradient(loss: object) -> tuple[float, float]:
    """Of the target."""
    logits = LOGITS.clone().requires_grad_()
    found = loss(logits, TARGET)  # type: ignore[operator]
    found.backward()
    assert logits.grad is not None
    return found.item(), logits.grad[0, 1].item()


def main() -> None:
    """The weights of one row with each mask; then the loss of a target that is very unlikely."""
    print(f"{'':18}{'three are kept':24}{'none is kept':24}three are kept, fp16")
    for mask in MASKS:
        cells = (weights(mask, SOME), weights(mask, NONE), weights(mask, SOME, torch.float16))
        print(f"{mask.__name__:18}{cells[0]:24}{cells[1]:24}{cells[2]}")
    for loss in LOSSES:
        found, gradient = loss_and_gradient(loss)
        print(f"{loss.__name__:18}loss {found:g}, gradient {gradient:g}")


if __name__ == "__main__":
    main()
