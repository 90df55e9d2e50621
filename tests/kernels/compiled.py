"""What a Triton kernel's binary is made of, with no GPU: registers, spills, shared memory, widths of access.

Triton compiles nothing while it interprets: use this in a process of its own.
"""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def binary(kernel, types: Mapping[str, str], options: Mapping[str, int], target: str) -> dict[str, object]:
    """Compile `kernel` as its launcher would for aligned pointers and sizes and strides that 16 divides.

    Args:
        kernel: a function under `triton.jit`.
        types: of each argument, by name ("*bf16", "i32", "fp32"); None where the launcher passes None.
        options: what the launcher passes by keyword: constants, num_warps.
        target: a key of TARGETS.

    Returns:
        Shared memory in bytes, and for NVIDIA bytes of stack (spills live there), registers, and how often each kind
        of access to global or local memory occurs in the machine code.
    """
    constants = {name: options.get(name) for name in kernel.arg_names if options.get(name, types.get(name)) is None
                 or name in options}  # fmt: skip
    signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if signature[name].startswith(("*", "i"))
    }
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(n),): v for n, v in constants.items()}, aligned)
    compiled = triton.compile(source, target=TARGETS[target], options={"num_warps": options["num_warps"]})
    facts: dict[str, object] = {"shared": compiled.metadata.shared}
    if "cubin" in compiled.asm:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(compiled.asm["cubin"])
            file.flush()
            usage = _run("cuobjdump", "-res-usage", file.name)
            code = _run("nvdisasm", "-c", file.name)
        facts["registers"] = int(re.search(r"REG:(\d+)", usage)[1])
        facts["stack"] = int(re.search(r"STACK:(\d+)", usage)[1])
        facts["accesses"] = Counter(re.findall(r"\b((?:LDG|LDGSTS|STG|LDL|STL)\.[.\w]+)", code))
    return facts


def _run(tool: str, *arguments: str) -> str:
    return subprocess.run([_TOOLS / tool, *arguments], capture_output=True, text=True, check=True).stdout
