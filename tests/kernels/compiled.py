"""What a kernel's binaries are made of, with no GPU: registers, spills, shared memory, widths of access.

Triton compiles nothing while it interprets: what compiles here does so in a process of its own.
"""

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

ROOT = Path(__file__).parents[2]
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True)
class Launch:
    """A kernel, and what its launcher got."""

    kernel: triton.JITFunction
    arguments: tuple
    keywords: dict


def recorded(module: ModuleType, call: Callable[[], object], warp_size: int) -> list[Launch]:
    """The launches of a call on CPU tensors, as they would be on an H200 with warps of that size; nothing runs."""
    launches: list[Launch] = []

    class Recorder:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            return lambda *arguments, **keywords: launches.append(Launch(self.kernel, arguments, keywords))

    saved = dict(vars(module))
    for function in (f for f in saved.values() if hasattr(f, "cache_clear")):
        function.cache_clear()
    stand_ins = {name: Recorder(value) for name, value in saved.items() if name.endswith("_kernel")}
    stand_ins |= {"_device": lambda device: (132, warp_size), "_INTERPRETED": True}
    try:
        vars(module).update(stand_ins)
        call()
    finally:
        vars(module).update({name: saved[name] for name in stand_ins})
    return launches


def binary(launch: Launch, target: str) -> dict[str, object]:
    """Compile what a launcher would, with the specialisation of these very arguments.

    Returns:
        The kernel's name, shared memory in bytes, warps, and for NVIDIA registers, bytes of stack (spills live there),
        instructions, and how often each kind of access to global or local memory occurs in the machine code.
    """
    kernel, gpu = launch.kernel, TARGETS[target]
    backend = make_backend(gpu)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, options = bind(*launch.arguments, **launch.keywords)
    options, signature, constants, attributes = kernel._pack_args(
        backend, launch.keywords, bound, specialization, options
    )
    source = ASTSource(kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=gpu, options=options.__dict__)
    facts: dict[str, object] = {
        "kernel": kernel.__name__,
        "target": target,
        "shared": compiled.metadata.shared,
        "warps": compiled.metadata.num_warps,
    }
    if "cubin" in compiled.asm:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(compiled.asm["cubin"])
            file.flush()
            usage = _run("cuobjdump", "-res-usage", file.name)
            code = _run("nvdisasm", "-c", file.name)
        facts["registers"] = int(re.search(r"REG:(\d+)", usage)[1])
        facts["stack"] = int(re.search(r"STACK:(\d+)", usage)[1])
        facts["instructions"] = len(re.findall(r"/\*[0-9a-f]{4,}\*/ +(?!NOP)\S", code))
        facts["accesses"] = Counter(re.findall(r"\b((?:LDG|LDGSTS|STG|LDL|STL)\.[.\w]+)", code))
    return facts


def ahead(promises: type, target: str, columns: Iterable[int]) -> list[dict]:
    """The facts of every kernel that a class of promises launches at these row lengths, from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, promises.__module__, promises.__name__, target, *map(str, columns)],
        cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main(module: str, name: str, target: str, *columns: str) -> None:
    promises = getattr(importlib.import_module(module), name)()
    facts = [
        {"columns": int(number)} | binary(launch, target)
        for number in columns
        for launch in promises.launches(int(number), TARGETS[target].warp_size)
    ]
    print(json.dumps(facts))


def _run(tool: str, *arguments: str) -> str:
    return subprocess.run([_TOOLS / tool, *arguments], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
