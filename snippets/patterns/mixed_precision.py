"""A matrix product and a training step in each precision: how to ask for it, what is rounded, and what goes wrong.

python -m snippets.patterns.mixed_precision
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LARGEST = torch.finfo(torch.float8_e4m3fn).max  # 448


# --8<-- [start:model]
class Block(nn.Module):
    """A pre-norm transformer block. (rows, length, width) in and out."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """Logits (rows, length, vocabulary) of tokens (rows, length)."""

    def __init__(self, layers: int = 2, width: int = 128, heads: int = 2, vocabulary: int = 512):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


# --8<-- [end:model]


# --8<-- [start:step]
def loss_of(model: Model, tokens: Tensor, targets: Tensor, cast: torch.dtype | None = None) -> Tensor:
    """The mean loss. Under autocast products take inputs of dtype `cast`; the loss is computed in fp32 at least."""
    with torch.autocast(tokens.device.type, cast, enabled=cast is not None):
        logits = model(tokens).flatten(0, 1)
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets.flatten())


def train_step(
    model: Model,
    optimizer: torch.optim.Optimizer,
    tokens: Tensor,
    targets: Tensor,
    cast: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
    loss_of: Callable[..., Tensor] = loss_of,
) -> Tensor:
    """One update. `scaler` is for autocast to fp16 alone."""
    optimizer.zero_grad()
    loss = loss_of(model, tokens, targets, cast)
    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # divides the gradients, and leaves the step out where one is infinite
        scaler.update()
    return loss.detach()


# --8<-- [end:step]


# --8<-- [start:tf32]
def products_of_fp32(tf32: bool) -> None:
    """For the whole process: whether products of fp32 matrices may round their inputs to TF32."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")


# --8<-- [end:tf32]


# --8<-- [start:fp8]
def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of x in fp8 (e4m3), each over its scale. (rows, columns) -> the same, and (rows, 1) in fp32."""
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / LARGEST
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


def product_of_fp8(a: Tensor, scale_a: Tensor, b: Tensor, scale_b: Tensor) -> Tensor:
    """a @ b.T of quantised rows, in bf16. Both sizes of b are multiples of 16, as the tensor cores want them."""
    by_row = F.ScalingType.RowWise
    return F.scaled_mm(a, b.t(), scale_a, by_row, scale_b.t(), by_row, output_dtype=torch.bfloat16, use_fast_accum=True)


def linear_in_fp8(a: Tensor, b: Tensor) -> Tensor:
    """a @ b.T, both quantised in the call."""
    return product_of_fp8(*quantised(a), *quantised(b))


# --8<-- [end:fp8]


# --8<-- [start:rounding]
def in_tf32(x: Tensor) -> Tensor:
    """fp32 numbers rounded to the 10 bits of a TF32 fraction: what tensor cores read."""
    bits = x.view(torch.int32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32)


ROUNDED: dict[str, Callable[[Tensor], Tensor]] = {
    "tf32": in_tf32,
    "fp16": lambda x: x.half().float(),
    "bf16": lambda x: x.bfloat16().float(),
    "fp8 e4m3": lambda x: x.to(torch.float8_e4m3fn).float(),
}


def error_of_sums(terms: int, rounded: Callable[[Tensor], Tensor], sums: int = 256) -> float:
    """RMS error of sums of `terms` products whose factors were rounded, over the RMS of the exact sums."""
    generator = torch.Generator().manual_seed(terms)
    a, b = (torch.randn(sums, terms, generator=generator) for _ in range(2))
    exact = (a.double() * b.double()).sum(-1)
    return float(((rounded(a).double() * rounded(b).double()).sum(-1) - exact).norm() / exact.norm())


def error_of_bf16_sums(terms: int, sums: int = 256) -> float:
    """The same, with factors of bf16 and each partial sum rounded to bf16 as well."""
    generator = torch.Generator().manual_seed(terms)
    a, b = (torch.randn(sums, terms, generator=generator) for _ in range(2))
    exact = (a.double() * b.double()).sum(-1)
    sum_, products = torch.zeros(sums, dtype=torch.bfloat16), a.bfloat16().float() * b.bfloat16().float()
    for column in range(terms):
        sum_ = (sum_.float() + products[:, column]).bfloat16()
    return float((sum_.double() - exact).norm() / exact.norm())


# --8<-- [end:rounding]


# --8<-- [start:underflow]
def lost_gradients(tokens: int = 4096, vocabulary: int = 8192, rows: int = 128) -> dict[str, float]:
    """The share of the gradient of the logits that becomes zero, by the dtype that it is handed on in; of some rows."""
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0))
    gradient = logits.softmax(-1) / tokens  # but for one column a row, of a mean loss
    found = {"bf16": gradient.bfloat16(), "fp16": gradient.half(), "fp16, scaled by 65536": (gradient * 65536).half()}
    return {name: float((kept == 0).float().mean()) for name, kept in found.items()}


# --8<-- [end:underflow]


# --8<-- [start:updates]
def moved(dtype: torch.dtype, lr: float, steps: int = 100, weights: int = 2**12) -> tuple[float, float]:
    """What AdamW does to weights of this dtype whose gradient never changes its sign.

    Returns the share of weights that never moved, and the mean way over that in float64.
    """
    generator = torch.Generator().manual_seed(0)
    first = 0.02 * torch.randn(weights, generator=generator)
    ways = []
    for kind in (dtype, torch.float64):
        p = nn.Parameter(first.to(kind))
        begin, optimizer = p.detach().clone(), torch.optim.AdamW([p], lr=lr, weight_decay=0)
        p.grad = torch.ones_like(p)
        for _ in range(steps):
            optimizer.step()
        ways.append((p.detach() - begin).double().abs())
    return float((ways[0] == 0).double().mean()), float(ways[0].mean() / ways[1].mean())


# --8<-- [end:updates]


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
