"""LayerNorm written in four ways that look alike, and what each is off from float64.

Run `python -m snippets.patterns.normalization_mistakes`.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

EPS = 1e-5


# --8<-- [start:written]
def divides_by_n(x: Tensor) -> Tensor:
    """As the paper and PyTorch have it: the mean of the squares, and eps below the root."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + EPS)


def torch_var(x: Tensor) -> Tensor:
    """Divides by n - 1: torch.var and torch.std do, unless correction=0 is given."""
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + EPS)


def eps_outside(x: Tensor) -> Tensor:
    """Adds eps to the standard deviation, which is another number where the deviation is small."""
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True, correction=0) + EPS)


def mean_of_squares(x: Tensor) -> Tensor:
    """E[x²] - E[x]²: one pass over the row, and the difference of two large numbers where the mean is large."""
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(x.pow(2).mean(-1, keepdim=True) - mean.pow(2) + EPS)


# --8<-- [end:written]

WAYS = (divides_by_n, torch_var, eps_outside, mean_of_squares)
ROWS = {  # columns, standard deviation and mean of each element
    "4096 columns": (4096, 1.0, 0.0),
    "8 columns": (8, 1.0, 0.0),
    "deviation 1e-3": (4096, 1e-3, 0.0),
    "mean 1000": (4096, 1.0, 1000.0),
}


def off(way: object, columns: int, deviation: float, mean: float) -> float:
    """The largest difference from LayerNorm in float64, of 64 rows in fp32."""
    torch.manual_seed(0)
    x = (torch.randn(64, columns, dtype=torch.float64) * deviation + mean).float()
    exact = F.layer_norm(x.double(), (columns,), eps=EPS)
    return (way(x).double() - exact).abs().nan_to_num(nan=math.inf).max().item()  # type: ignore[operator]


def said(difference: float) -> str:
    """Its order of magnitude."""
    return f"{10.0 ** round(math.log10(difference)):.0e}" if math.isfinite(difference) else "nan"


def main() -> None:
    """The largest difference of each, for four kinds of rows."""
    print(f"{'':18}" + "".join(f"{name:>16}" for name in ROWS))
    for way in WAYS:
        print(f"{way.__name__:18}" + "".join(f"{said(off(way, *rows)):>16}" for rows in ROWS.values()))


if __name__ == "__main__":
    main()
