"""Three findings in kernels of this site, made with `snippets.validation.compiled_code`: spills, narrow accesses, fp64.

Run `python -m snippets.validation.compiled_code_findings` to make them again; it needs no GPU.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import torch
import triton

from snippets.validation import compiled_code

ROOT = Path(__file__).parents[2]


def find(kernel: str, signature: str, warps: int, folder: Path = ROOT) -> None:
    """Print a command for the shell, and what the tool says to it, in a process of its own: a copy if that works."""
    arguments = [kernel, "--num-warps", str(warps), "--signature", signature]
    print(f"$ python -m {compiled_code.__name__} {kernel} \\")
    print("\n    ".join(textwrap.wrap(f'    --num-warps {warps} --signature "{signature}"', 96)), flush=True)
    way = "spawn" if torch.backends.cuda.is_built() else "fork"  # with CUDA, a copy may be of no use
    process = multiprocessing.get_context(way).Process(target=tool, args=(arguments, folder))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(process.exitcode)
    print()


def tool(arguments: list[str], folder: Path) -> None:
    os.chdir(folder)
    sys.exit(compiled_code.main(arguments))


# --8<-- [start:spill]
def spill() -> None:
    """LayerNorm's backward at 16384 columns: whole rows, as for shorter ones, and the two looks that it takes."""
    tensors = "*bf16:16, *bf16:16, *bf16:16, *fp32:16"  # dy, x, weight, mean and rstd
    sizes = "i32:16, i32:16, i32:16, i32:16, 8"
    whole = f"{tensors}, None, *bf16:16, *fp32:16, {sizes}, 1, 16384, True, 3, True"
    find("kernels/layer_norm.py:_backward_kernel", whole, warps=16)
    looks = f"{tensors}, *bf16:16, *fp32:16, {sizes}, 4, 4096, True, '', '', False"
    find("kernels/layer_norm.py:_backward_wide_kernel", looks, warps=16)


# --8<-- [end:spill]


# --8<-- [start:narrow]
def narrow() -> None:
    """Softmax of 9000 columns: 16 does not divide 9000, and does not have to."""
    for sizes, unit in (("i32, i32:16, i32", 1), ("i32, i32:16, i32", 8)):  # strides and sizes, counted in units
        signature = f"*bf16:16, *bf16:16, None, {sizes}, 1, 5, 2048, 256, False, 0, False, True, {unit}"
        find("kernels/softmax.py:_forward_row_kernel", signature, warps=8)


# --8<-- [end:narrow]


# --8<-- [start:fp64]
def fp64() -> None:
    """RMSNorm with an fp64 eps, as torch.compile hands on a Python float: without its cast, and with it."""
    kernel = ROOT / "kernels" / "rms_norm.py"
    signature = "*bf16:16, *bf16:16, *bf16:16, *fp32:16, i32:16, i32:16, i32:16, fp64, 8, 1, 4096"
    with tempfile.TemporaryDirectory() as folder:
        without = Path(folder) / "without_cast.py"
        without.write_text(kernel.read_text().replace("tl.cast(eps, tl.float32)", "eps"))
        find("without_cast.py:_forward_kernel", signature, warps=8, folder=Path(folder))
    find("kernels/rms_norm.py:_forward_kernel", signature, warps=8)


# --8<-- [end:fp64]


def main() -> None:
    """Print the findings."""
    for finding in (spill, narrow, fp64):
        print(f"==== {finding.__name__}")
        finding()


if __name__ == "__main__":
    if triton.knobs.runtime.interpret:  # as for tests on a CPU; whether to, triton asks when it is imported
        command = [sys.executable, *sys.orig_argv[1:]]
        sys.exit(subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "0"}).returncode)
    main()
