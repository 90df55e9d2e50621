"""What each step of matmul_steps.py changes in the machine code for an H100, and in the traffic.

Run `python -m snippets.kernels.matmul_steps_code`; it needs no GPU. With one, and with NVIDIA's ncu, it also prints
what the GPU counted.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from unittest import mock

import torch
import triton
from torch import Tensor
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

from snippets.kernels import matmul_steps, matmul_steps_cuda
from snippets.validation.compiled_code import SASS, compile_for, facts, machine_code, tool
from snippets.validation.profiling_ncu import ask

SIZE = 8192
NAMES = "FFMA", "HGMMA", "LDG", "LDGSTS", "UTMALDG", "STG", "UTMASTG"
COUNTERS = "gpu__time_duration.sum", "dram__bytes_read.sum", "lts__t_sector_hit_rate.pct"


# --8<-- [start:launched]
def launched(step: Callable[[Tensor, Tensor], Tensor]) -> tuple[triton.JITFunction, Sequence[object], dict[str, int]]:
    """The kernel, the arguments and the options that a step launches; nothing runs."""
    launches = []
    a, b = (torch.empty(512, 512, dtype=torch.bfloat16) for _ in range(2))
    with mock.patch.object(
        triton.JITFunction, "run", lambda *of, grid, warmup, **options: launches.append((of, options))
    ):
        step(a, b)
    (((kernel, *arguments), options),) = launches
    return kernel, arguments, options


def source_of(kernel: triton.JITFunction, arguments: Sequence[object]) -> ASTSource:
    """With the types of these arguments. 16 divides every address and every size."""
    types, constants, attributes = {}, {}, {}
    for index, (parameter, value) in enumerate(zip(kernel.params, arguments, strict=True)):
        if parameter.is_constexpr:
            types[parameter.name], constants[(index,)] = "constexpr", value
        elif isinstance(value, TensorDescriptor):
            types[parameter.name] = f"tensordesc<bf16{value.block_shape}>"
        else:
            types[parameter.name] = "*bf16" if isinstance(value, Tensor) else "i32"
            attributes[(index,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, types, constants, attributes)


# --8<-- [end:launched]


def code() -> dict[str, dict[str, int]]:
    """By step: how many instructions of each name, the registers of a thread, KiB of shared memory, bytes spilled."""
    found = {}
    for step in matmul_steps.STEPS:
        kernel, arguments, options = launched(step)
        compiled, _ = compile_for(source_of(kernel, arguments), "sm_90", **options)
        count = Counter(line.opcode.split(".")[0] for line in machine_code(compiled))
        known = facts(compiled, "sm_90")
        resources = {"registers": known.registers, "KiB shared": known.shared // 1024, "spilled": known.spilled}
        found[step.__name__] = {name: count[name] for name in NAMES} | resources
    return found


def code_of_cuda() -> dict[str, dict[str, int]]:
    """The same of the functions in matmul_steps.cu. Dynamic shared memory is what the launch asks for."""
    cubin = matmul_steps_cuda._cubin("sm_90a")
    listing, usage = tool("nvdisasm", "-c", cubin), tool("cuobjdump", "-res-usage", cubin)
    found = {}
    for name, dynamic in (("naive", 0), ("shared_memory", 0), ("tensor_cores", matmul_steps_cuda.SHARED)):
        (text,) = re.findall(rf"^\.text\.{name}:\n(.*?)(?=^//-----|\Z)", listing, re.MULTILINE | re.DOTALL)
        count = Counter(at[1].split(".")[0] for line in text.splitlines() if (at := SASS.match(line)))
        (used,) = re.findall(rf"Function {name}:\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)", usage)
        registers, stack, shared = map(int, used)
        resources = {"registers": registers, "KiB shared": (shared + dynamic) // 1024, "spilled": stack}
        found[f"CUDA {name}"] = {name: count[name] for name in NAMES} | resources
    return found


# --8<-- [start:traffic]
def traffic(BM: int, BN: int) -> float:
    """GB of a and b that all tiles load, from memory or from the L2 cache."""
    return (SIZE // BM) * (SIZE // BN) * (BM + BN) * SIZE * 2 / 1e9


def wave(group: int, tiles: int, BM: int = 128, BN: int = 256) -> float:
    """GB of a and b that the first tiles need, each byte once: what one wave of programs asks of the memory."""
    across = group * SIZE // BN
    rows = {tile // across * group + tile % across % group for tile in range(tiles)}
    cols = {tile % across // group for tile in range(tiles)}
    return (len(rows) * BM + len(cols) * BN) * SIZE * 2 / 1e9


# --8<-- [end:traffic]


def watched() -> None:
    """What ncu watches: each of the two orders, once warm."""
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    steps = matmul_steps.pipelined, matmul_steps.grouped
    for step in steps:
        step(a, b)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for step in steps:
        step(a, b)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def main() -> None:
    print("==== code")
    width = len("CUDA shared_memory")
    print(" " * width + "".join(f"  {name}" for name in (*NAMES, "registers", "KiB shared", "spilled")))
    for step, row in (code() | code_of_cuda()).items():
        print(step.ljust(width) + "".join(str(number).rjust(len(name) + 2) for name, number in row.items()))

    print("==== traffic")
    for BM, BN in ((16, 16), (128, 128), (128, 256)):
        print(f"tiles of {BM} x {BN}: {traffic(BM, BN):.1f} GB of a and b")

    print("==== wave")
    for name, group in (("row by row", 1), ("groups of 16", 16)):
        print(f"132 tiles, {name}: {wave(group, 132) * 1000:.0f} MB of a and b")

    if torch.cuda.is_available():
        print("==== counted")
        command = [sys.executable, "-c", f"from {__spec__.name} import watched; watched()"]
        try:
            found = ask(command, COUNTERS)
        except RuntimeError as error:
            print(error)
            return
        for name, counted in zip(("row by row", "groups of 16"), found, strict=True):
            seconds, read, hits = (counted.counters[counter] for counter in COUNTERS)
            print(f"{name}: {read / 1e9:.2f} GB from memory in {seconds * 1e6:.0f} us, {hits:.0f}% hits in the L2")


if __name__ == "__main__":
    if triton.knobs.runtime.interpret:  # as for tests on a CPU; whether to, triton asks when it is imported
        command = [sys.executable, "-m", __spec__.name]
        sys.exit(subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "0"}).returncode)
    main()
