"""What does torch.compile do to a function? Each stage's product, printed.

Run `python -m snippets.compiler.what_compile_does`: the first compilation on a machine takes a while.
"""

import re
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from snippets.compiler.what_compile_does_graphs import autograd_graphs, captures, dynamo_graph, readable
from snippets.compiler.what_compile_does_traffic import Traffic, nbytes
from snippets.validation.timing import seconds_per_call, synchronize


# --8<-- [start:function]
def unit_rows(x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
    """The tail of an embedding model: bias, squared ReLU, skip connection, rows of length one.

    `x` and `y` have shape (rows, columns), `bias` (columns,); the result has the shape and dtype of `x`.
    """
    hidden = x + F.relu(y + bias).square()
    return hidden / hidden.norm(dim=-1, keepdim=True)


# --8<-- [end:function]


# --8<-- [start:inductor]
def generated_kernels(function: Callable, *inputs: Tensor) -> list[str]:
    """The kernels that Inductor writes: Triton for a GPU, C++ for a CPU."""
    _, code = run_and_get_code(torch.compile(function), *inputs)
    kernels = re.findall(r"'''(.*?)'''", "".join(code), re.DOTALL)
    return [kernel[max(kernel.find("@triton.jit"), 0) :].strip() for kernel in kernels]  # without the launch settings


# --8<-- [end:inductor]


def first_and_later(function: Callable, *inputs: Tensor) -> tuple[float, float]:
    """Seconds of a compiled function's first call, and of a later one."""
    torch.compiler.reset()
    compiled, device = torch.compile(function), inputs[0].device
    began = time.perf_counter()
    compiled(*inputs)
    synchronize(device)
    return time.perf_counter() - began, seconds_per_call(lambda: compiled(*inputs), device)


def main() -> None:
    """Follow one function through the compiler."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows, columns, dtype = (65536, 1024, torch.bfloat16) if device.type == "cuda" else (4096, 1024, torch.float32)
    x, y = (torch.randn(rows, columns, device=device).to(dtype) for _ in range(2))
    bias = torch.randn(columns, device=device).to(dtype)

    print("==== eager")
    with Traffic() as traffic:
        result = unit_rows(x, y, bias)
    once = ("every tensor once", nbytes((x, y, bias)), nbytes(result))
    for name, read, written in [*traffic.operations, once]:
        print(f"{name:<32} reads {read / 1e6:8.3f} MB   writes {written / 1e6:8.3f} MB")

    print("==== eager, timed")
    for (name, read, written), call in zip(traffic.operations, traffic.calls, strict=True):
        seconds = seconds_per_call(call, device)
        print(f"{name:<32} {seconds * 1e6:8.1f} us {(read + written) / seconds / 1e9:8.1f} GB/s")

    print("==== Dynamo")
    print(readable(dynamo_graph(unit_rows, x, y, bias)))

    print("==== guards")
    calls = [(x[:few], y[:few], bias) for few in (8, 8, 16, 24)] + [(x[:8].double(), y[:8].double(), bias.double())]
    for (part, _, _), count in zip(calls, captures(unit_rows, calls), strict=True):
        print(f"{tuple(part.shape)!s:<11} {part.dtype!s:<14} graphs so far: {count}")

    for direction, graph in zip(("forward", "backward"), autograd_graphs(unit_rows, x, y, bias), strict=True):
        print(f"==== AOTAutograd, {direction}")
        print(readable(graph))

    print("==== Inductor")
    print("\n\n".join(generated_kernels(unit_rows, x, y, bias)))

    print("==== Inductor, wide rows")
    wide = x.view(-1, 16 * columns), y.view(-1, 16 * columns), bias.repeat(16)
    print("\n\n".join(generated_kernels(unit_rows, *wide)))

    print("==== time")
    first, later = first_and_later(unit_rows, x, y, bias)
    eager = seconds_per_call(lambda: unit_rows(x, y, bias), device)
    print(f"first call {first:.3f} s, later {later * 1e6:.1f} us; eager {eager * 1e6:.1f} us")


if __name__ == "__main__":
    main()
