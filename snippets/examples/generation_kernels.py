"""One decoding step of a Llama at batch 1 in Triton, five kernels a layer. It needs torch 2.11 or newer.

Norm and query, key, value; RoPE and attention; output projection and residual add; norm, gate, up and SiLU; down and
residual add. On Hopper and later each kernel starts before the one before it has ended (programmatic dependent
launch): it asks for its first weights, and only then waits for the other kernel's result.
"""

import functools

import torch
import triton
from torch import Tensor, nn

from snippets.examples.generation_kernels_attention import _attention_kernel
from snippets.examples.generation_kernels_matvec import _matvec_kernel
from snippets.examples.generation_loop import Generator
from snippets.examples.generation_step import Decoder, refuse
from snippets.examples.generation_weights import Matrix


@functools.cache
def _early(device: torch.device) -> dict[str, bool]:
    """Kernels of Hopper and later may start before the one before them has ended."""
    on = device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device) >= (9, 0)
    return {"EARLY": True, "launch_pdl": True} if on else {"EARLY": False}


def _tile_sizes(K: int, width: int, normed: bool, gated: bool) -> dict[str, int]:
    """From sweeps on an H100. K counts what a row stores, each of `width` bytes."""
    if width == 1:
        rows, columns = 8, 512 if normed else 1024
    elif normed:
        rows, columns = 4 if gated or K > 2048 else 8, 1024
    else:
        rows, columns = 8, 2048
    return {"BLOCK_N": rows, "BLOCK_K": min(triton.next_power_of_2(K), columns), "num_warps": 4}


def matvec(
    matrix: Matrix,
    x: Tensor,
    out: Tensor,
    norm: Tensor | None = None,
    eps: float = 0.0,
    residual: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    """out = weight @ norm(x) + residual, or silu(gate) * up where the rows of weight are gate, then up.

    Args:
        matrix: a contiguous weight (rows, columns), and scales: those of `generation_weights.quantized`, or none.
        x: (columns,). norm: the weight of an RMSNorm of x, or none. residual: (rows,), or none; it may be `out`.
        out: (rows,), or (rows // 2,) if gated. Sums are in fp32 and rounded once.
    """
    weight, scale = matrix
    N, K = len(out), weight.shape[1]
    tile = _tile_sizes(K, weight.element_size(), norm is not None, gated)
    grid = (triton.cdiv(N, tile["BLOCK_N"]),)
    _matvec_kernel[grid](x, norm, weight, scale, residual, out, N, K, eps, GATED=gated, **_early(x.device), **tile)
    return out


class Attention:
    """One token's attention over a cache of keys and values (shared heads, length, D), in parts side by side."""

    def __init__(self, heads: int, shared: int, D: int, length: int, device: torch.device, splits: int = 32):
        queries = triton.next_power_of_2(heads // shared)
        self.sizes = {"HEADS": heads, "SHARED": shared, "GROUP": max(16, queries), "QUERIES": queries, "D": D}
        self.splits, self.length = splits, length
        rows = splits * heads
        self.parts = torch.empty(rows, D, device=device)
        self.stats = torch.empty(2, rows, device=device)
        self.counts = torch.zeros(shared, dtype=torch.int32, device=device)

    def __call__(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, position: Tensor, out: Tensor
    ) -> Tensor:
        """qkv ((heads + 2 * shared) * D,); cos, sin (length, D); position (1,): where the new token stands."""
        _attention_kernel[(self.sizes["SHARED"], self.splits)](
            qkv, cos, sin, keys, values, position, self.parts, self.stats, self.counts, out, self.length,
            self.sizes["D"] ** -0.5, SPLITS=self.splits, BLOCK=64, num_warps=4, **self.sizes, **_early(qkv.device),
        )  # fmt: skip
        return out


# --8<-- [start:decoder]
class TritonDecoder(Decoder):
    """The step of one sequence by Triton kernels, with weights in bf16, int8, fp8 or int4."""

    def __init__(self, model: nn.Module, length: int, dtype: torch.dtype | None = None):
        super().__init__(model, 1, length, dtype)
        down, _ = self.layers[0].down
        inner = down.shape[1] * (2 if down.dtype == torch.uint8 else 1)
        sizes = (
            len(self.norm),
            (self.heads + 2 * self.shared) * self.size,
            self.heads * self.size,
            inner,
            len(self.head[0]),
        )
        self.h, self.qkv, self.mixed, self.gated, self.logits = (self.norm.new_empty(n) for n in sizes)
        self.attention = Attention(self.heads, self.shared, self.size, length, self.norm.device)

    def __call__(self, tokens: Tensor, positions: Tensor) -> Tensor:
        h = torch.index_select(self.embedding, 0, tokens, out=self.h[None])[0]
        for layer, (keys, values) in zip(self.layers, self.cache, strict=True):
            matvec(layer.qkv, h, self.qkv, norm=layer.before, eps=self.eps)
            self.attention(self.qkv, self.cos, self.sin, keys[0], values[0], positions, self.mixed)
            matvec(layer.out, self.mixed, h, residual=h)
            matvec(layer.gate_up, h, self.gated, norm=layer.between, eps=self.eps, gated=True)
            matvec(layer.down, self.gated, h, residual=h)
        return matvec(self.head, h, self.logits, norm=self.norm, eps=self.eps)[None]


# --8<-- [end:decoder]


# --8<-- [start:answer]
def prepared(model: nn.Module, length: int = 2048, dtype: torch.dtype | None = None, **sampling: float) -> Generator:
    """Make it once. Weights in bf16; in torch.int8, torch.float8_e4m3fn or torch.uint8 (int4) beside the model's."""
    refuse(model, dtype)
    if (size := model.config.head_dim) < 16 or size & (size - 1):
        raise ValueError(f"model: expected heads of a power of 2, at least 16, got {size}")
    return Generator(model, TritonDecoder(model, length, dtype), **sampling)


# --8<-- [end:answer]
