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
from snippets.kernels.first_kernel_backward import with_backward
from snippets.kernels.first_kernel_rows import any_layout, any_length, any_offset, offset_kernel, row_kernel
from snippets.kernels.first_kernel_wide import any_width


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
