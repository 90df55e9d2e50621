"""The first speedup: one transformer block, five ways to run it, the same weights in all.

Run `python -m snippets.first_speedup` for the table of the machine at hand.
"""

import math
import sys
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snippets.validation.timing import Call, Timing, captured, measure

VERSIONS = ("first-draft", "compile-draft", "better", "compile", "graph")


# --8<-- [start:first-draft]
def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return wide.to(x.dtype) * weight


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class FirstDraft(nn.Module):
    """A pre-norm transformer block, written from the formulas. (batch, tokens, width) in and out."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.norm1, self.norm2 = (nn.Parameter(torch.ones(width)) for _ in range(2))

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = (linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for linear in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(rms_norm(x, self.norm1))
        return x + self.down(gelu(self.up(rms_norm(x, self.norm2))))


# --8<-- [end:first-draft]


# --8<-- [start:better]
class Better(nn.Module):
    """The same block with the same weights: one projection for q, k and v, and PyTorch's fused ops."""

    def __init__(self, draft: FirstDraft):
        super().__init__()
        self.heads, self.out, self.up, self.down = draft.heads, draft.out, draft.up, draft.down
        self.norm1, self.norm2 = draft.norm1, draft.norm2
        self.qkv = nn.Parameter(torch.cat([draft.q.weight, draft.k.weight, draft.v.weight]))

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = F.linear(x, self.qkv).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # views, no copies
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(F.rms_norm(x, self.norm1.shape, self.norm1, 1e-6))
        x_normed = F.rms_norm(x, self.norm2.shape, self.norm2, 1e-6)
        return x + self.down(F.gelu(self.up(x_normed), approximate="tanh"))


# --8<-- [end:better]


# --8<-- [start:version]
def version(name: str, draft: FirstDraft, x: Tensor) -> Call:
    """One way to run the block, as a call without arguments.

    Raises:
        ValueError: a CUDA graph is asked for on a CPU.
    """
    if name == "first-draft":
        return partial(draft, x)
    if name == "compile-draft":
        return partial(torch.compile(draft, dynamic=False), x)
    better = Better(draft).requires_grad_(False)
    if name == "better":
        return partial(better, x)
    compiled = partial(torch.compile(better, dynamic=False), x)
    if name == "compile":
        return compiled
    if not x.is_cuda:
        raise ValueError("does nothing on a CPU: a CUDA graph replays launches on a GPU, and here there are none")
    replay, read = captured(compiled), (compiled, x)
    return lambda: (replay(), read)[0]  # a graph holds addresses: the weights it reads must outlive this function


# --8<-- [end:version]


def make(width: int, heads: int, batch: int, tokens: int, device: torch.device, dtype: torch.dtype):
    """A block for inference, and an input (batch, tokens, width) for it."""
    draft = FirstDraft(width, heads).to(device, dtype).requires_grad_(False)
    return draft, torch.randn(batch, tokens, width, device=device).to(dtype)


def compare(draft: FirstDraft, x: Tensor) -> tuple[dict[str, Timing], dict[str, str]]:
    """Time the versions side by side. Returns seconds per call, and why a version was left out."""
    calls, left_out = {}, {}
    for name in VERSIONS:
        progress(f"building {name}")
        try:
            calls[name] = version(name, draft, x)
            calls[name]()
        except Exception as error:  # noqa: BLE001  no compiler, no GPU: the others are still worth timing
            calls.pop(name, None)
            left_out[name] = str(error).splitlines()[0] if str(error) else type(error).__name__
    progress(f"timing {len(calls)} versions side by side")
    return measure(calls, x.device, mode="calls", patience=10 if x.is_cuda else 2), left_out


def progress(step: str) -> None:
    print(f"{step} ...", file=sys.stderr, flush=True)


def table(timings: dict[str, Timing], left_out: dict[str, str], tokens: int) -> str:
    """The first-speedup table: implementation, median time, tokens per second, speedup over the first draft."""
    lines = [f"{'implementation':<16}{'time':>12}{'throughput':>22}{'speedup':>10}"]
    for name in VERSIONS:
        if name in left_out:
            lines.append(f"{name:<16}  not timed: {left_out[name]}")
            continue
        seconds = timings[name].p50
        rate, gain = f"{tokens / seconds:,.0f} tokens/s", timings["first-draft"].p50 / seconds
        lines.append(f"{name:<16}{seconds * 1e6:>9,.1f} us{rate:>22}{gain:>9.2f}x")
    return "\n".join(lines)


def main() -> None:
    """Print the table for this machine: on a GPU at a small and at a large width."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    shapes = [(512, 8, 4, 128), (2048, 16, 8, 1024)] if device.type == "cuda" else [(512, 8, 1, 128)]
    for width, heads, batch, tokens in shapes:
        torch.manual_seed(0)
        draft, x = make(width, heads, batch, tokens, device, dtype)
        timings, left_out = compare(draft, x)
        print(f"\n{where}, {dtype}: width {width}, {heads} heads, batch {batch}, {tokens} tokens, forward")
        print(table(timings, left_out, batch * tokens))


if __name__ == "__main__":
    main()
