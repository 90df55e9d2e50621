"""A first Triton kernel: a softmax over rows in twenty lines, what is wrong with it, and each mend.

Run `TRITON_INTERPRET=1 python -m snippets.kernels.first_kernel` on any machine; on one with a GPU, leave the variable
out.
"""

# --8<-- [start:imports]
import torch
import triton
import triton.language as tl
from torch import Tensor

# --8<-- [end:imports]


# --8<-- [start:eager]
def written_out(x: Tensor) -> Tensor:
    """Softmax over the last dimension as it is written down."""
    exps = torch.exp(x - x.amax(-1, keepdim=True))
    return exps / exps.sum(-1, keepdim=True)


# --8<-- [end:eager]


# --8<-- [start:first]
@triton.jit
def first_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)  # which program this is: each does one row
    cols = tl.arange(0, BLOCK)  # 0, 1, 2, ... for all columns of the row at once
    x = tl.load(x_ptr + row * columns + cols).to(tl.float32)
    exps = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + cols, exps / tl.sum(exps, axis=0))


def first(x: Tensor) -> Tensor:
    rows, columns = x.shape
    y = torch.empty_like(x)
    first_kernel[(rows,)](x, y, columns, BLOCK=columns)  # as many programs as there are rows
    return y


# --8<-- [end:first]


# --8<-- [start:rounded-up]
def rounded_up(x: Tensor) -> Tensor:
    """Runs for every row length, and is wrong for all but powers of two."""
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    memory = torch.empty(x.numel() + block, dtype=x.dtype, device=x.device)  # the last program writes past its row
    first_kernel[(rows,)](x, memory, columns, BLOCK=block)
    return memory[: x.numel()].view(rows, columns)


# --8<-- [end:rounded-up]


# --8<-- [start:any-length]
@triton.jit
def masked_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    inside = cols < columns
    x = tl.load(x_ptr + row * columns + cols, mask=inside, other=float("-inf")).to(tl.float32)
    exps = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + cols, exps / tl.sum(exps, axis=0), mask=inside)


def any_length(x: Tensor) -> Tensor:
    rows, columns = x.shape
    y = torch.empty_like(x)
    masked_kernel[(rows,)](x, y, columns, BLOCK=triton.next_power_of_2(columns))
    return y


# --8<-- [end:any-length]


# --8<-- [start:any-layout]
@triton.jit
def strided_kernel(x_ptr, y_ptr, x_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    inside = cols < columns
    x = tl.load(x_ptr + row * x_stride + cols, mask=inside, other=float("-inf")).to(tl.float32)
    exps = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + cols, exps / tl.sum(exps, axis=0), mask=inside)


def as_rows(x: Tensor) -> Tensor:
    """Any tensor as rows whose columns are neighbours in memory: a view where there is one, else a copy."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def any_layout(x: Tensor) -> Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)  # empty_like would take over the strides of x
    x = as_rows(x)
    rows, columns = x.shape
    strided_kernel[(rows,)](x, y, x.stride(0), columns, BLOCK=triton.next_power_of_2(columns))
    return y


# --8<-- [end:any-layout]


@triton.jit
def row_kernel(x_ptr, y_ptr, x_stride, columns, BLOCK: tl.constexpr):
    # --8<-- [start:any-offset]
    row = tl.program_id(0).to(tl.int64)  # and so is every product with it
    # --8<-- [end:any-offset]
    cols = tl.arange(0, BLOCK)
    inside = cols < columns
    x = tl.load(x_ptr + row * x_stride + cols, mask=inside, other=float("-inf")).to(tl.float32)
    exps = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * columns + cols, exps / tl.sum(exps, axis=0), mask=inside)


def any_offset(x: Tensor) -> Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x = as_rows(x)
    rows, columns = x.shape
    row_kernel[(rows,)](x, y, x.stride(0), columns, BLOCK=triton.next_power_of_2(columns))
    return y


# --8<-- [start:more-warps]
def warps_for(block: int) -> int:
    """8 numbers a thread and more: a warp has 32 threads, and a program at most 1024 on an NVIDIA GPU."""
    return min(max(block // 1024, 4), 16)


def more_warps(x: Tensor) -> Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x = as_rows(x)
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    row_kernel[(rows,)](x, y, x.stride(0), columns, BLOCK=block, num_warps=warps_for(block))
    return y


# --8<-- [end:more-warps]


# --8<-- [start:any-width]
@triton.jit
def wide_kernel(x_ptr, y_ptr, x_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    high = -3.4028234663852886e38  # the lowest fp32: had it been -inf, -inf - -inf would be NaN
    total = 0.0
    for start in range(0, columns, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + cols, mask=cols < columns, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(high, tl.max(x, axis=0))
        total = total * tl.exp(high - higher) + tl.sum(tl.exp(x - higher), axis=0)
        high = higher
    for start in range(0, columns, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + cols, mask=cols < columns, other=float("-inf")).to(tl.float32)
        tl.store(y_ptr + row * columns + cols, tl.exp(x - high) / total, mask=cols < columns)


WIDEST_TILE = 16384


def any_width(x: Tensor) -> Tensor:
    if x.shape[-1] <= WIDEST_TILE:
        return more_warps(x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x = as_rows(x)
    rows, columns = x.shape
    wide_kernel[(rows,)](x, y, x.stride(0), columns, BLOCK=8192, num_warps=16)
    return y


# --8<-- [end:any-width]


# --8<-- [start:gradient]
@triton.jit
def gradient_kernel(dy_ptr, y_ptr, dx_ptr, dy_stride, columns, BLOCK: tl.constexpr):
    """dx = y * (dy - sum(dy * y)), the sum over the row."""
    row = tl.program_id(0).to(tl.int64)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        dy = tl.load(dy_ptr + row * dy_stride + cols, mask=cols < columns, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + row * columns + cols, mask=cols < columns, other=0.0).to(tl.float32)
        sums += dy * y
    total = tl.sum(sums, axis=0)
    for start in range(0, columns, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        dy = tl.load(dy_ptr + row * dy_stride + cols, mask=cols < columns, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + row * columns + cols, mask=cols < columns, other=0.0).to(tl.float32)
        tl.store(dx_ptr + row * columns + cols, y * (dy - total), mask=cols < columns)


# --8<-- [end:gradient]


# --8<-- [start:with-backward]
class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        y = any_width(x)
        ctx.save_for_backward(y)  # not x: the gradient needs y alone
        return y

    @staticmethod
    def backward(ctx, dy: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        dx = torch.empty_like(y)
        dy = as_rows(dy)  # what comes back may have any strides: that of y.sum() is one number, expanded
        rows, columns = dy.shape
        block = min(triton.next_power_of_2(columns), 8192)
        gradient_kernel[(rows,)](dy, y, dx, dy.stride(0), columns, BLOCK=block, num_warps=warps_for(block))
        return dx


def with_backward(x: Tensor) -> Tensor:
    return Softmax.apply(x)


# --8<-- [end:with-backward]


STAGES = (first, rounded_up, any_length, any_layout, any_offset, any_width, with_backward)


def verdict(stage, x: Tensor) -> str:
    """What a stage makes of an input."""
    try:
        y = stage(x)
    except Exception:  # noqa: BLE001  Triton's own, of another type in the interpreter
        return "error"
    return "right" if torch.allclose(y, torch.softmax(x, -1), atol=1e-6) else "wrong"


def gradient_verdict(stage, x: Tensor) -> str:
    x = x.clone().requires_grad_()
    y = stage(x)
    if not y.requires_grad:
        return "none"
    weights = torch.randn_like(y)
    expected = torch.autograd.grad(torch.softmax(x, -1), x, weights)[0]
    return "right" if torch.allclose(torch.autograd.grad(y, x, weights)[0], expected, atol=1e-6) else "wrong"


def inputs(device: torch.device) -> dict[str, Tensor]:
    """A few rows of each kind. Behind each lies more memory, so that what reads too far reads numbers of ours."""
    numbers = torch.randn(64, 1024, device=device)
    return {
        "4 x 1024": numbers[:4],
        "4 x 1000": numbers.view(-1)[:4000].view(4, 1000),
        "transposed": numbers[:16, :16].contiguous().t(),
        "every other row": numbers[:8:2],
        "1 x 1,500,000": torch.randn(1, 1_500_000, device=device),
    }


# --8<-- [start:offsets]
@triton.jit
def offset_kernel(offset_ptr, stride):
    row = tl.program_id(0)
    tl.store(offset_ptr + row * 2, (row * stride).to(tl.int64))
    tl.store(offset_ptr + row * 2 + 1, row.to(tl.int64) * stride)


# --8<-- [end:offsets]


def main() -> None:
    """Run every stage on every kind of input, and print what becomes of it."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    print("==== first")
    x = torch.tensor([[0.0, 1.0, 2.0, 3.0], [5.0, 5.0, 5.0, 5.0]], device=device)
    print(first(x).cpu())

    print("==== odd")
    x = torch.randn(4, 1000, device=device)
    try:
        first(x)
    except Exception as error:  # noqa: BLE001  InterpreterError, or CompilationError on a GPU
        print(f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}")

    print("==== stages")
    kinds = inputs(device)
    print(f"{'':13}" + "".join(f"{kind:>17}" for kind in kinds) + f"{'gradient':>10}")
    for stage in STAGES:
        verdicts = "".join(f"{verdict(stage, x):>17}" for x in kinds.values())
        print(f"{stage.__name__:13}{verdicts}{gradient_verdict(stage, kinds['4 x 1024']):>10}")

    print("==== offsets")
    offsets = torch.empty(3, 2, dtype=torch.int64, device=device)
    offset_kernel[(3,)](offsets, 2**30)
    print(f"{'row':>3}{'32 bits':>14}{'64 bits':>14}")
    for row, (narrow, wide) in enumerate(offsets.tolist()):
        print(f"{row:>3}{narrow:>14}{wide:>14}")

    if device.type == "cuda":  # what only a compiled kernel has
        print("==== registers")
        print(f"{'columns':>7}{'warps':>7}{'numbers':>9}{'registers':>11}{'bytes spilled':>15}   (of a thread)")
        for columns, warps in ((4096, 4), (32768, 4), (32768, 16), (131072, 4), (131072, 16)):
            x = torch.zeros(1, columns, dtype=torch.bfloat16, device=device)
            kernel = row_kernel[(1,)](x, torch.empty_like(x), columns, columns, BLOCK=columns, num_warps=warps)
            registers, spilled = kernel.n_regs, 4 * kernel.n_spills
            print(f"{columns:>7}{warps:>7}{columns // (32 * warps):>9}{registers:>11}{spilled:>15}")


if __name__ == "__main__":
    main()
