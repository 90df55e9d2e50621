"""What does Inductor fuse? One function grows line by line; after each line, the kernels and the bytes that they move.

Run `python -m snippets.compiler.fusion`. Nothing is computed for the counts: Inductor plans for the device at hand, a
GPU if there is one, and the plan is read off its scheduler, which is no public API. Seen with torch 2.11 to 2.15.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from snippets.compiler.fusion_asked import both_layouts, column_softmax, product_and_bias, product_and_scatter
from snippets.compiler.fusion_plan import Kernel, plan
from snippets.compiler.inductor_code import made
from snippets.compiler.inductor_code_launches import Launch, Operations
from snippets.compiler.what_compile_does_traffic import nbytes

GROUPS = 64  # rows of the table that the last step adds into
HEADS = 8


# --8<-- [start:rows]
def gated(x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
    """Elementwise operations."""
    return x * F.silu(y + bias)


def normed(x: Tensor, y: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    """A reduction along each row, and what uses it."""
    return F.rms_norm(gated(x, y, bias), weight.shape, weight, 1e-6)


def scaled(x: Tensor, y: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    """A second reduction along the row, of the first one's result."""
    hidden = normed(x, y, bias, weight)
    return hidden / hidden.abs().amax(dim=-1, keepdim=True)


# --8<-- [end:rows]


# --8<-- [start:steps]
def balanced(x: Tensor, y: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    """A third, down the columns."""
    hidden = scaled(x, y, bias, weight)
    return hidden / hidden.abs().amax(dim=0)


def projected(x: Tensor, y: Tensor, bias: Tensor, weight: Tensor, matrix: Tensor) -> Tensor:
    """A matrix product."""
    return balanced(x, y, bias, weight) @ matrix


def activated(x: Tensor, y: Tensor, bias: Tensor, weight: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
    """Elementwise operations on the product: its epilogue."""
    return F.relu(projected(x, y, bias, weight, matrix) * shift)


def by_head(x: Tensor, y: Tensor, bias: Tensor, weight: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
    """A change of layout: each head's columns become a matrix of their own."""
    hidden = activated(x, y, bias, weight, matrix, shift)
    return hidden.unflatten(-1, (HEADS, -1)).transpose(0, 1).contiguous()


def pooled(
    x: Tensor, y: Tensor, bias: Tensor, weight: Tensor, matrix: Tensor, shift: Tensor, group: Tensor
) -> tuple[Tensor, Tensor]:
    """A scatter: rows are added up where an index says."""
    hidden = by_head(x, y, bias, weight, matrix, shift)
    wide = torch.promote_types(hidden.dtype, torch.float32)  # sums of many rows
    table = torch.zeros(HEADS, GROUPS, hidden.shape[-1], device=x.device, dtype=wide)
    return hidden, table.index_add(1, group, hidden.to(wide))


# --8<-- [end:steps]

STEPS: tuple[Callable, ...] = (gated, normed, scaled, balanced, projected, activated, by_head, pooled)


def inputs_of(step: Callable, rows: int, columns: int, device: str, dtype: torch.dtype) -> list[Tensor]:
    """Arguments for a step: as many as it takes, the same ones for each step."""
    torch.manual_seed(0)
    shapes = (rows, columns), (rows, columns), (columns,), (columns,), (columns, columns), (columns,)
    tensors = [torch.randn(shape, device=device).to(dtype) for shape in shapes]
    tensors.append(torch.randint(GROUPS, (rows,), device=device))
    return tensors[: step.__code__.co_argcount]


# --8<-- [start:opaque]
@torch.library.custom_op("fusion::norm", mutates_args=())
def opaque_norm(hidden: Tensor, weight: Tensor) -> Tensor:
    """The same norm, closed: the compiler knows the shape of what it returns, and nothing of how it is made."""
    return F.rms_norm(hidden, weight.shape, weight, 1e-6)


@opaque_norm.register_fake
def _(hidden: Tensor, weight: Tensor) -> Tensor:
    return torch.empty_like(hidden)


def scaled_opaque(x: Tensor, y: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    """`scaled`, with the norm in the middle closed."""
    hidden = opaque_norm(gated(x, y, bias), weight)
    return hidden / hidden.abs().amax(dim=-1, keepdim=True)


# --8<-- [end:opaque]


# --8<-- [start:exercise]
def columns_first(x: Tensor, y: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    """A function like `balanced`, with the reduction down the columns in front: of an input, not of a result."""
    return scaled(x, y / y.abs().amax(dim=0), bias, weight)


# --8<-- [end:exercise]


# --8<-- [start:window]
def window(x: Tensor, width: int) -> Tensor:
    """Sums of an expensive function over a sliding window: each of its values is needed `width` times."""
    costly = torch.erf(torch.sin(torch.erf(torch.sin(x))))
    size = x.shape[-1] - width + 1
    return sum(costly[:, start : start + size] for start in range(width))


KEEP = {"realize_opcount_threshold": 0}  # what is used twice is written to memory, however cheap it is to repeat
# --8<-- [end:window]


# --8<-- [start:together]
def scale_of(*tensors: Tensor) -> Tensor:
    """One over the length that the rows of all tensors have together, of shape (rows, 1)."""
    return sum(tensor.float().square().sum(dim=-1, keepdim=True) for tensor in tensors).rsqrt()


def times(tensor: Tensor, scale: Tensor) -> Tensor:
    """A tensor scaled row by row, in its own dtype."""
    return (tensor * scale).to(tensor.dtype)


def together(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All of the tensors are needed before the sums and after them."""
    scale = scale_of(*tensors)
    return tuple(times(tensor, scale) for tensor in tensors)


# --8<-- [end:together]


def eager(function: Callable, *inputs: Tensor) -> tuple[int, int]:
    """Operations of an eager call, without views and allocations, and the bytes that they move."""
    launches: list[Launch] = []
    with Operations(launches):
        function(*inputs)
    return len(launches), sum(launch.bytes for launch in launches)


def show(name: str, kernels: list[Kernel], unit: int) -> None:
    """Print a plan, with bytes counted in tensors of `unit` bytes."""
    total = sum(kernel.bytes for kernel in kernels)
    print(f"{name:<19} kernels    {len(kernels):2}   tensors moved {total / unit:6.2f}")
    for kernel in kernels:
        times = Counter(kernel.makes)
        makes = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in times.items())
        print(f"    {kernel.bytes / unit:6.2f}  {makes}{'' if kernel.written else '   (not written by Inductor)'}")


def main() -> None:
    """Print the plan of each step, and of what fuses too little and too much."""
    gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float32)
    rows, columns = (16384, 4096) if gpu else (1024, 1024)
    unit = rows * columns * dtype.itemsize

    print("==== steps")
    for step in STEPS:
        show(step.__name__, plan(step, *inputs_of(step, rows, columns, device, dtype)), unit)

    print("==== eager")
    for step in STEPS:
        operations, moved = eager(step, *inputs_of(step, rows, columns, device, dtype))
        print(f"{step.__name__:<19} operations {operations:2}   tensors moved {moved / unit:6.2f}")

    print("==== asked")
    square = torch.randn(rows, rows, device=device).to(dtype)
    for function in (column_softmax, both_layouts, product_and_bias, product_and_scatter):
        show(function.__name__, plan(function, square), nbytes(square))

    print("==== opaque")
    for step in (scaled, scaled_opaque):
        show(step.__name__, plan(step, *inputs_of(step, rows, columns, device, dtype)), unit)

    print("==== exercise")
    show(columns_first.__name__, plan(columns_first, *inputs_of(scaled, rows, columns, device, dtype)), unit)

    print("==== window")
    x = torch.randn(rows, columns, device=device)
    for width in (2, 8):
        for name, options in (("fused", {}), ("kept", KEEP)):
            show(f"{name}, {width}", plan(partial(window, width=width), x, **options), nbytes(x))

    print("==== together")
    for several in (1, 4, 16):
        tensors = [torch.randn(rows // 16, 1024, device=device).to(dtype) for _ in range(several)]
        show(f"{several} tensors", plan(together, *tensors), nbytes(tensors))

    if gpu:  # a CPU's compiler does not tell how many registers it took
        print("==== registers")
        for several in (1, 4, 16):
            tensors = [torch.randn(16384, 1024, device=device).to(dtype) for _ in range(several)]
            (result,) = made(together, *tensors)
            for launch in result.launches:
                binary = launch.binary
                facts = (
                    f"registers {binary['registers']}, spilled bytes {binary['spilled']}" if binary else "a library's"
                )
                print(f"{several} tensors: {facts}, {binary.get('options', {}).get('num_warps')} warps")


if __name__ == "__main__":
    main()
