"""What a kernel's binaries are made of, with no GPU: registers, spills, shared memory, widths of access.

Triton compiles nothing while it interprets: what compiles here does so in a process of its own.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

import triton
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from snippets.validation.compiled_code import TARGETS, compile_for, facts, troubles

ROOT = Path(__file__).parents[2]


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
        The facts of `snippets.validation.compiled_code`, and where its troubles come from, line by line.
    """
    kernel, gpu = launch.kernel, TARGETS[target]
    backend = make_backend(gpu)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, options = bind(*launch.arguments, **launch.keywords)
    options, signature, constants, attributes = kernel._pack_args(
        backend, launch.keywords, bound, specialization, options
    )
    compiled, _ = compile_for(ASTSource(kernel, signature, constants, attributes), target, **options.__dict__)
    lines = {kind: dict(lines) for kind, lines in troubles(compiled).items()}
    return asdict(facts(compiled, target)) | {"troubles": lines}


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
    found = [
        {"columns": int(number)} | binary(launch, target)
        for number in columns
        for launch in promises.launches(int(number), TARGETS[target].warp_size)
    ]
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
