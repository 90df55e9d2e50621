"""Which way of calling a Triton kernel survives a package.

Run `python -m snippets.compiler.ahead_of_time_kernel`. Without a GPU it does nothing.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn


# --8<-- [start:kernel]
@triton.jit
def add_kernel(x, y, out, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < count) + tl.load(y + at, at < count), at < count)


@torch.library.triton_op("ridgepoint::add_seen", mutates_args=())
def add_seen(x: Tensor, y: Tensor) -> Tensor:
    """The compiler looks inside, and finds the kernel."""
    out = torch.empty_like(x)
    torch.library.wrap_triton(add_kernel)[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    return out


@torch.library.custom_op("ridgepoint::add_opaque", mutates_args=())
def add_opaque(x: Tensor, y: Tensor) -> Tensor:
    """The compiler knows the name."""
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    return out


@add_opaque.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(x)


class Adds(nn.Module):
    def __init__(self, operator: Any) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, x: Tensor) -> Tensor:
        return self.operator(x, x) * 2


# In a process that has neither the kernel nor the operator.
CALL = """
import sys
import torch

x = torch.ones(3000, device="cuda")
print("right" if (torch._inductor.aoti_load_package(sys.argv[1])(x) == 4).all() else "wrong")
"""


# --8<-- [end:kernel]


def package_and_call(operator: Any, path: Path) -> tuple[int, str]:
    """How many kernels are in the package of an operator, and what a process by itself says that calls it."""
    program = torch.export.export(Adds(operator), (torch.ones(3000, device="cuda"),))
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    with zipfile.ZipFile(path) as package:
        kernels = sum(name.endswith((".cubin", ".hsaco")) for name in package.namelist())
    command = [sys.executable, "-I", "-c", CALL, str(path)]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if "Error: " in line]
    return kernels, done.stdout.strip() or (errors or done.stderr.splitlines())[-1].partition(". ")[0]


def main() -> None:
    if not torch.cuda.is_available():
        print("a Triton kernel in a package needs a GPU")
        return
    with tempfile.TemporaryDirectory() as folder:
        for way, operator in {"triton_op": add_seen, "custom_op": add_opaque}.items():
            kernels, said = package_and_call(operator, Path(folder) / f"{way}.pt2")
            print(f"{way:<10} kernels in the package: {kernels}   called elsewhere: {said}")


if __name__ == "__main__":
    main()
