"""Code that fixes a size, needs an even one or two that are equal, and how to say so."""

from torch import Tensor, nn
from torch.export import Dim


# --8<-- [start:fixed]
class Heads(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(4, 2, 4).sum(1)


class AnyHeads(nn.Module):
    """Says what is known, and leaves the batch alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (2, 4)).sum(1)


# --8<-- [end:fixed]
# --8<-- [start:pairs]
class Pairs(nn.Module):
    """Adds neighbouring rows: the batch must be even, and the range has to say so."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(-1, 2, 8).sum(1)


ANY = ({0: Dim("batch", max=64)},)
EVEN = ({0: 2 * Dim("half", min=2, max=32)},)


# --8<-- [end:pairs]
# --8<-- [start:equal]
class Sum(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


TWO = ({0: Dim("a")}, {0: Dim("b")})
ONE = ({0: Dim("batch")}, {0: Dim("batch")})
# --8<-- [end:equal]
