"""Atomics in Triton: a count of values, where many lanes and programs add to one address.

Run `TRITON_INTERPRET=1 python -m snippets.kernels.first_kernel_atomics` on any machine; on one with a GPU, leave the
variable out.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


# --8<-- [start:atomics]
@triton.jit
def count_kernel(values_ptr, counts_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    values = tl.load(values_ptr + at, mask=inside, other=0)
    tl.atomic_add(counts_ptr + values, 1, mask=inside)  # equal values add to one address


def count(values: Tensor, most: int) -> Tensor:
    """How often each of 0, 1, ... up to `most` occurs, as torch.bincount."""
    counts = torch.zeros(most + 1, dtype=torch.int32, device=values.device)  # atomics add to what is there
    count_kernel[(triton.cdiv(values.numel(), 256),)](values, counts, values.numel(), BLOCK=256)
    return counts


# --8<-- [end:atomics]

if __name__ == "__main__":
    numbers = torch.randint(10, (1000,), device="cuda" if torch.cuda.is_available() else "cpu")
    torch.testing.assert_close(count(numbers, 9).long(), torch.bincount(numbers, minlength=10))
