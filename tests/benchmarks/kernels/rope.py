"""Rotary position embedding, forward and backward: what each implementation makes of the memory's bandwidth."""

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels import rope as kernel
from tests.benchmarks import blocks, sides, wrong
from tests.benchmarks.bounds import bound, ceiling
from tests.benchmarks.case import Case, Point, Workload

NAMES = ("batch", "tokens", "heads", "kv_heads", "head_dim")


def shape(*sizes: int) -> dict[str, int]:
    return dict(zip(NAMES, sizes, strict=True))


CONTIGUOUS = "contiguous"  # another layout, in which the tokens of a head follow each other
# 65536 tokens, with heads as in Llama 3.1 8B and 3.2 1B, StableLM 3B, Phi-3 mini and Gemma 2 9B
LARGE = {
    "typical": shape(16, 4096, 32, 8, 128),
    "head dim 64": shape(8, 8192, 32, 8, 64),
    "head dim 80": shape(16, 4096, 32, 32, 80),
    "head dim 96": shape(16, 4096, 32, 32, 96),
    "head dim 256": shape(8, 8192, 16, 8, 256),
}


def points(device: torch.device) -> Iterator[Point]:
    few = {"batch": 8, "tokens": 1}  # one token of each of 8 texts
    yield from sides.grid(device, LARGE, on_a_cpu=shape(1, 512, 8, 2, 64), few=few, small="decode")
    if device.type == "cuda":
        yield from sides.of_part(CONTIGUOUS, {"typical": LARGE["typical"]})
    yield from blocks.points(device)


def prepare(point: Point, device: torch.device) -> Workload:
    if "width" in point.shape:
        return blocks.block_workload(point, device, blocks.Operations(), blocks.Operations(rotate=kernel.rope))
    batch, tokens, heads, kv_heads, head_dim = point.shape.values()
    dtype = getattr(torch, point.dtype)

    def projected(heads: int) -> Tensor:
        """As a projection leaves them: (batch, tokens, heads, head_dim), seen transposed. Or a contiguous copy."""
        t = torch.randn(batch, tokens, heads, head_dim, device=device).to(dtype).transpose(1, 2)
        return t.contiguous() if point.part == CONTIGUOUS else t

    q, k, dq, dk = (projected(h) for h in (heads, kv_heads, heads, kv_heads))
    # from a later position on: at the first one nothing is rotated
    angles = torch.arange(1000, 1000 + tokens, device=device)[:, None] * 10000.0 ** (
        -torch.arange(0, head_dim, 2, device=device) / head_dim
    )
    cos, sin = (torch.cat((t, t), -1)[None].to(dtype) for t in (angles.cos(), angles.sin()))
    calls = 2 if point.direction == "both" else 1  # the backward moves what the forward moves: the inputs are not in it
    moved = q.nbytes + k.nbytes
    return sides.workload(
        point,
        kernel,
        {"q": q, "k": k},
        {
            "eager": lambda: eager,
            "ours": lambda: kernel.rope,
            # rotates q and k in place, and in the backward their incoming gradients
            "liger": sides.Side(
                sides.library("liger_kernel.ops.rope:LigerRopeFunction.apply"),
                overwrites=("forward", "backward", "both"),
            ),
            "quack": sides.Side(quack, layout=lambda t: t.transpose(1, 2), rest=halves),
        },
        bytes_read=calls * (moved + cos.nbytes + sin.nbytes),
        bytes_written=calls * moved,
        flops=calls * 3 * (q.numel() + k.numel()),
        mix="copy",
        rest=(cos, sin),
        outputs=("q_out", "k_out"),
        grads=(dq, dk),
        wrong={
            "not rotated": lambda q, k, cos, sin: (1 * q, 1 * k),
            "keys not rotated": lambda q, k, cos, sin: (eager(q, k, cos, sin)[0], 1 * k),
            "rotated the other way": lambda q, k, cos, sin: eager(q, k, cos, -sin),
            "5% too large": wrong.scaled(eager),
        },
    )


def eager(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """As the code of LLaMA has it."""

    def rotate_half(t: Tensor) -> Tensor:
        first, second = t.chunk(2, -1)
        return torch.cat((-second, first), -1)

    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def quack() -> sides.Function:
    """One call for q and one for k, each (batch, tokens, heads, head_dim)."""
    from quack.rotary import apply_rotary_emb

    return lambda q, k, cos, sin: (apply_rotary_emb(q, cos, sin), apply_rotary_emb(k, cos, sin))


def halves(cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """The tables as quack wants them: (tokens, head_dim / 2)."""
    return tuple(t[0, :, : t.shape[2] // 2].contiguous() for t in (cos, sin))


COPY = ceiling("copy", case="kernels/rope")
TENSORS = {"batch": 16, "tokens": 4096, "heads": 32, "kv": 8, "dim": 128, "width": 2}
tables_bytes = bound("MB", "2 * tokens * dim * width", TENSORS)  # The tables of cosines and sines.
q_and_k_bytes = bound("MB", "batch * tokens * (heads + kv) * dim * width", TENSORS)  # q and k.
# q, k and the tables: q and k read and written, the tables read.
forward_bytes = bound("MB", "2 * (batch * (heads + kv) + 1) * tokens * dim * width", TENSORS)
# What the forward takes where all its traffic runs at the rate of a copy.
forward_at_least = bound("us", "2 * (batch * (heads + kv) + 1) * tokens * dim * width / copy", TENSORS, copy=COPY)
# Ten passes over q and k at the rate of a copy.
eager_at_least = bound("us", "10 * batch * (heads + kv) * tokens * dim * width / copy", TENSORS, copy=COPY)

CASE = Case(
    question="How close does rotary embedding come to the memory's bandwidth, forward and backward?",
    check_at={
        "forward backward both": [{"batch": 2, "tokens": 1, "heads": 4, "kv_heads": 2, "head_dim": 64}],
        "forward backward": [
            {"batch": 1, "tokens": 64, "heads": 4, "kv_heads": 2, "head_dim": 64, "part": "contiguous"}
        ],
        "forward both": [{"batch": 1, "tokens": 64, "width": 256}],
    },
)
