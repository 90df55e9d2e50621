"""What a kernel's binaries are made of, with no GPU: registers, spills, shared memory, widths of access.

Triton compiles nothing while it interprets: what compiles here does so in a process of its own.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType

from triton.backends.compiler import GPUTarget

from snippets.validation.compiled_code import TARGETS, compile_for, facts, troubles
from tests.benchmarks import stand_ins
from tests.benchmarks.launches import Launch, recording, specialised

ROOT = Path(__file__).parents[2]
# Instructions on NVIDIA's GPUs and on AMD's, as patterns: for MachineCode.known.
LOAD = r"LDG\.E\S*\.128", "(buffer|global)_load_dwordx4"
STORE = r"STG\.E\S*\.128", "(buffer|global)_store_dwordx4"
AHEAD = r"LDGSTS\.E\S*\.128", "(buffer|global)_load_dwordx4"  # on NVIDIA's GPUs past the registers
POWER, ROOT_OF, INVERSE = (r"MUFU\.EX2", "v_exp_f32"), (r"MUFU\.RSQ", "v_rsq_f32"), (r"MUFU\.RCP", "v_rcp_f32")
PRODUCT = r"IMAD\.(WIDE|HI)", "v_mad_u64_u32|v_mul_hi"
SWEPT = "the launch table is the fastest of the sweep on the H200, where this spills nothing; not measured on this GPU"
# GPUs that no page shows, with less shared memory: an RTX 4090, an RTX 5090. Multiprocessors, and bytes of each.
OTHERS = {"sm_89": (128, 100 * 1024), "sm_120": (170, 100 * 1024)}


@dataclass(frozen=True)
class MachineCode:
    """What is known of a kernel file's binaries at its published points: MACHINE_CODE of the file's tests.

    tests/pages/test_compiled.py holds the binaries against it.

    Attributes:
        known: three or more of (kernel, a piece of a source line, what such a line becomes on NVIDIA's GPUs, on AMD's).
        spills: by kernel and target, the bytes a thread that it may spill, and why; nothing else may.
        narrow: accesses of less than 128 bits that a kernel has at most, unrolled: a row's own numbers, as its mean.
        small: kernels that move next to nothing, in accesses of any width.
        share: of a kernel's instructions, at least, come from a line of the source.
    """

    known: tuple[tuple[str, str, str, str], ...]
    spills: Mapping[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    narrow: int = 0
    small: tuple[str, ...] = ()
    share: float = 0.9


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
    """The facts of every kernel that a class of promises launches at these row lengths, from a process of its own.

    Args:
        promises: with a method `launches`.
        target: of TARGETS, or of OTHERS.
        columns: the row lengths.
    """
    done = subprocess.run(
        [sys.executable, "-m", __name__, promises.__module__, promises.__name__, target, *map(str, columns)],
        cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main(module: str, name: str, target: str, *columns: str) -> None:
    for other, (multiprocessors, shared_memory) in OTHERS.items():
        TARGETS[other] = GPUTarget("cuda", int(other.removeprefix("sm_")), 32)
        stand_ins.MULTIPROCESSORS[other], stand_ins.SHARED_MEMORY[other] = multiprocessors, shared_memory
    promises = getattr(importlib.import_module(module), name)()
    found = [
        {"columns": int(number)} | binary(launch, target)
        for number in columns
        for launch in promises.launches(int(number), target)
    ]
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
