"""Wrong kernels that `allclose` lets pass, and what the check says of them.

Run `python -m snippets.validation.equivalence_candidates` to see it.
"""

import math

import torch
from torch import Tensor

from snippets.validation.equivalence import compare


# --8<-- [start:candidates]
def plain(x: Tensor) -> Tensor:
    """Softmax as it is written down: each of four steps rounds to the dtype of x."""
    exponentials = torch.exp(x - x.amax(-1, keepdim=True))
    return exponentials / exponentials.sum(-1, keepdim=True)


def rounds_once(x: Tensor) -> Tensor:
    """What a fused kernel does: fp32 in registers, one rounding at the store."""
    return plain(x.float()).to(x.dtype)


def misses_columns(x: Tensor) -> Tensor:
    """A mask that is off by one tile: the last 128 columns are left out of the sum."""
    exponentials = torch.exp(x.float() - x.float().amax(-1, keepdim=True))
    return (exponentials / exponentials[..., :-128].sum(-1, keepdim=True)).to(x.dtype)


def never_stores(x: Tensor) -> Tensor:
    """A kernel that was skipped: the output is what the allocator handed out."""
    return torch.zeros_like(x)


# --8<-- [end:candidates]


# --8<-- [start:nonsense]
def gradient(x: Tensor) -> Tensor:
    """Of cross-entropy, where the first column is each row's target: softmax, and 1 less there."""
    target = torch.zeros_like(x)
    target[..., 0] = 1
    return plain(x) - target


def only_at_target(x: Tensor) -> Tensor:
    """Nonsense: of 32,768 numbers a row one is computed, and the others are left zero."""
    result = torch.zeros_like(x)
    result[..., 0] = gradient(x)[..., 0]
    return result


# --8<-- [end:nonsense]

CANDIDATES = {rounds_once: plain, misses_columns: plain, never_stores: plain, only_at_target: gradient}


def main() -> None:
    """Judge each candidate by allclose, loose and by default, and by the two bounds: error over bound."""
    torch.manual_seed(0)
    inputs = torch.randn(32, 32768)
    print(f"{'':24}{'allclose':>10}{'allclose':>10}{'largest':>10}{'RMS':>8}{'the':>9}")
    print(f"{'':24}{'1e-2':>10}{'default':>10}{'error':>10}{'error':>8}{'check':>9}")
    for dtype in (torch.bfloat16, torch.float32):
        x = inputs.to(dtype)
        for candidate, right in CANDIDATES.items():
            result, baseline = candidate(x), right(x)
            loose = torch.allclose(result, baseline, atol=1e-2, rtol=1e-2)
            default = torch.allclose(result, baseline)
            ours = compare(result, baseline, right(x.double()))
            bounds = f"{power_of_ten(ours.error / ours.bound):>10}{power_of_ten(ours.rms / ours.rms_bound):>8}"
            verdicts = f"{said(loose):>10}{said(default):>10}{bounds}{said(ours.holds):>9}"
            print(f"{candidate.__name__:16}{str(dtype)[6:]:8}{verdicts}")


def power_of_ten(share: float) -> str:
    return f"{10.0 ** round(math.log10(share)):.0e}"


def said(passes: bool) -> str:
    return "passes" if passes else "fails"


if __name__ == "__main__":
    main()
