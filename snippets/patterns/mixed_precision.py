"""A matrix product and a training step in each precision: how to ask for it, what is rounded, and what goes wrong.

python -m snippets.patterns.mixed_precision
"""

import torch
import torch.nn.functional as F

from snippets.patterns.mixed_precision_rounding import ROUNDED, error_of_bf16_sums, error_of_sums, lost_gradients, moved

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


# --8<-- [start:autocast]
def dtypes_under_autocast(cast: torch.dtype = torch.bfloat16, device: torch.device = DEVICE) -> dict[str, torch.dtype]:
    """The dtype of each operation's result under autocast, of fp32 inputs."""
    x, w = torch.randn(2, 8, 16, device=device), torch.randn(16, 16, device=device)
    targets = torch.zeros(2, 16, dtype=torch.long, device=device)
    with torch.autocast(device.type, cast):
        y = F.linear(x, w)
        return {
            "F.linear(x, w)": y.dtype,
            "x @ w": (x @ w).dtype,
            "F.scaled_dot_product_attention(x, x, x)": F.scaled_dot_product_attention(x, x, x).dtype,
            "F.gelu(y)": F.gelu(y).dtype,
            "y + y": (y + y).dtype,
            "y + x": (y + x).dtype,
            "y.softmax(-1)": y.softmax(-1).dtype,
            "F.layer_norm(y, (16,))": F.layer_norm(y, (16,)).dtype,
            "F.rms_norm(y, (16,))": F.rms_norm(y, (16,)).dtype,
            "y.sum()": y.sum().dtype,
            "y.exp()": y.exp().dtype,
            "F.cross_entropy(y, targets)": F.cross_entropy(y, targets).dtype,
        }


# --8<-- [end:autocast]


def main() -> None:
    print("==== rounding")
    print(f"{'terms':>7}" + "".join(f"{name:>11}" for name in ROUNDED) + f"{'sums in bf16':>15}")
    for terms in (64, 1024, 16384):
        errors = "".join(f"{error_of_sums(terms, rounded):>11.1e}" for rounded in ROUNDED.values())
        print(f"{terms:>7}{errors}{error_of_bf16_sums(terms):>15.1e}")
    print("==== autocast")
    print(f"y = F.linear(x, w), x and w in fp32, autocast to bf16 on {DEVICE.type}")
    for operation, dtype in dtypes_under_autocast().items():
        print(f"{operation:<42}{str(dtype).removeprefix('torch.')}")
    print("==== underflow")
    for name, share in lost_gradients().items():
        print(f"{name:<24}{share:>7.1%} of the gradient is zero")
    print("==== updates")
    print(f"{'learning rate':<16}{'weights':<12}{'never moved':>12}{'way, over float64':>20}")
    for lr in (1e-3, 1e-4, 1e-5):
        for dtype in (torch.float32, torch.bfloat16):
            still, way = moved(dtype, lr)
            print(f"{lr:<16g}{str(dtype).removeprefix('torch.'):<12}{still:>12.1%}{way:>20.3f}")


if __name__ == "__main__":
    main()
