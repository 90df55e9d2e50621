"""Small programs that show what a variable or an option does."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch import Tensor

from snippets.reference.environment_variables_settings import options


def print_options() -> None:
    """For the process that asks."""
    print(json.dumps(options()))


# --8<-- [start:programs]
def waves(x: Tensor) -> Tensor:
    return x.sin() + 1


def two_lengths() -> None:
    """Compiled twice: a line in the log."""
    compiled = torch.compile(waves, backend="eager", dynamic=False)
    for length in (2, 3):
        compiled(torch.ones(length))


def one_kernel() -> None:
    torch.compile(waves)(torch.ones(32))


def wrong_view() -> None:
    """An error of an operator in C++."""
    try:
        torch.ones(2).view(3)
    except RuntimeError as error:
        print(error)


def broken_backend() -> None:
    def broken(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
        raise NotImplementedError("this backend cannot")

    try:
        torch.compile(waves, backend=broken)(torch.ones(32))
    except torch._dynamo.exc.BackendCompilerFailed as error:
        print(f"{len(traceback.extract_tb(error.__traceback__))} frames of Python in the error's traceback")


# --8<-- [end:programs]


@triton.jit
def double(x, y, count, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + at, 2 * tl.load(x + at, at < count), at < count)


def double_by_triton() -> None:
    """A Triton kernel on the CPU: an error, or the result."""
    x = torch.ones(4)
    y = torch.zeros(4)
    try:
        double[(1,)](x, y, 4, SIZE=8)
        print(y)
    except RuntimeError as error:
        print(f"{type(error).__name__}: {str(error).splitlines()[0]}")


def compile_for_a_gpu() -> None:
    """One Triton kernel compiled twice for an H200, which need not be there."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    written = []
    for _ in range(2):
        source = ASTSource(double, {"x": "*fp32", "y": "*fp32", "count": "i32"}, {"SIZE": 128})
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
        binaries = Path(os.environ["TRITON_CACHE_DIR"]).rglob("double.cubin")
        written.append(max(path.stat().st_mtime_ns for path in binaries))
    print(f"the second compilation {'wrote the binary again' if len(set(written)) == 2 else 'found the first one'}")


if __name__ == "__main__":
    for name in sys.argv[1:] or ["wrong_view", "broken_backend", "double_by_triton"]:
        globals()[name]()
