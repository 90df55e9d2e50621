"""Two versions of a softmax, timed side by side.

Run `python -m snippets.validation.timing_your_op`.
"""

import torch

from snippets.validation.timing import measure


# --8<-- [start:versions]
def written_out(x: torch.Tensor) -> torch.Tensor:
    exps = torch.exp(x - x.amax(-1, keepdim=True))
    return exps / exps.sum(-1, keepdim=True)


def fused(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


# --8<-- [end:versions]


def two_versions() -> None:
    """Time both side by side, as the page does."""
    # --8<-- [start:use]
    x = torch.randn(64, 1024, device="cuda" if torch.cuda.is_available() else "cpu")

    calls = {"written_out": lambda: written_out(x), "fused": lambda: fused(x)}
    for name, time in measure(calls, x.device, mode="device" if x.is_cuda else "calls").items():
        print(f"{name}: {time.p50 * 1e6:.1f} us, most between {time.p20 * 1e6:.1f} us and {time.p80 * 1e6:.1f} us")
    # --8<-- [end:use]


def main() -> None:
    """Print the times of both versions."""
    print("==== two versions")
    two_versions()


if __name__ == "__main__":
    main()
