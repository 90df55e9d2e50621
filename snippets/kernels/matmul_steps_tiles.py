"""Which tile a program computes, and which matrices the steps take."""

import torch
import triton
import triton.language as tl
from torch import Tensor


# --8<-- [start:place]
@triton.jit
def place(tile, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """The first row and column of a tile. Tiles are numbered down GROUP rows of tiles, then one column further."""
    across = GROUP * tl.cdiv(N, BN)
    first = tile // across * GROUP
    down = min(tl.cdiv(M, BM) - first, GROUP)
    return (first + tile % across % down) * BM, tile % across // down * BN


# --8<-- [end:place]


# --8<-- [start:checked]
def checked(a: Tensor, b: Tensor, BM: int, BN: int, BK: int, dtypes: tuple = (torch.bfloat16, torch.float16)) -> Tensor:
    """Room for the result of matrices that the kernels take.

    Raises:
        ValueError: they are something else.
    """
    for name, t in {"a": a, "b": b}.items():
        if t.dtype not in dtypes or t.dim() != 2 or not t.is_contiguous() or t.numel() >= 2**31:
            raise ValueError(f"{name}: expected a contiguous matrix in {dtypes} of fewer than 2^31 elements, "
                             f"got {t.dtype}, shape {list(t.shape)}, strides {list(t.stride())}")  # fmt: skip
    (M, K), N = a.shape, b.shape[1]
    if len(b) != K or b.dtype != a.dtype or b.device != a.device:
        raise ValueError(f"b: expected {K} rows in {a.dtype} on {a.device}, got {len(b)}, {b.dtype}, {b.device}")
    if M % BM or N % BN or K % BK or not a.numel() * N or M * N >= 2**31:
        raise ValueError(f"a, b: expected M, N, K that are multiples of {BM}, {BN}, {BK}, M * N below 2^31, "
                         f"got {M}, {N}, {K}")  # fmt: skip
    return torch.empty(M, N, dtype=a.dtype, device=a.device)


def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3


# --8<-- [end:checked]
