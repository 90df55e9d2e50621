"""What a kernel's binaries are made of, with no GPU: registers, spills, shared memory, widths of access.

Triton compiles nothing while it interprets: what compiles here does so in a process of its own.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

from snippets.validation.compiled_code import compile_for, facts, troubles
from tests.benchmarks.launches import Launch, recording, specialised

ROOT = Path(__file__).parents[2]


def recorded(module: ModuleType, call: Callable[[], object], target: str) -> list[Launch]:
    """The launches of a call on CPU tensors, as they would be on such a GPU; nothing runs."""
    with recording(module, target) as launches:
        call()
    return launches


def binary(launch: Launch, target: str) -> dict[str, object]:
    """Compile what a launcher would, with the specialisation of these very arguments.

    Returns:
        The facts of `snippets.validation.compiled_code`, and where its troubles come from, line by line.
    """
    source, options = specialised(launch, target)
    compiled, _ = compile_for(source, target, **options)
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
        for launch in promises.launches(int(number), target)
    ]
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
