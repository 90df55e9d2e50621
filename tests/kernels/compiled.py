"""What a kernel's binaries are made of, with no GPU: registers, spills, shared memory, widths of access.

Triton compiles nothing while it interprets: what compiles here does so in a process of its own.
"""

import contextlib
import functools
import importlib
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType

from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, KernelInterface, create_function_from_signature

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
        small: kernels that move next to nothing, in accesses of any width, or all by descriptors.
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


def variant(launch: Launch, target: str) -> tuple:
    """What Triton's launcher looks its compiled kernels up by: launches with the same share one."""
    _, specialization, options = _binder(launch.kernel, target)(*launch.arguments, **launch.keywords)
    return launch.kernel.fn, tuple(specialization), str(options)


@functools.cache
def _binder(kernel: KernelInterface, target: str) -> Callable:
    jitted = kernel if isinstance(kernel, JITFunction) else JITFunction(kernel.fn, **kernel.kwargs)
    return create_function_from_signature(jitted.signature, jitted.params, make_backend(TARGETS[target]))


def ahead(promises: type, target: str, columns: Iterable[int]) -> list[dict]:
    """The facts of every kernel that a class of promises launches at these row lengths.

    Args:
        promises: with a method `launches`.
        target: of TARGETS, or of OTHERS.
        columns: the row lengths.
    """
    process = _compiler()
    assert process.stdin is not None and process.stdout is not None
    print(json.dumps([promises.__module__, promises.__name__, target, *columns]), file=process.stdin, flush=True)
    patience = threading.Timer(300, process.kill)
    patience.start()
    answer = process.stdout.readline()
    patience.cancel()
    assert answer, "the process that compiles has ended"
    found = json.loads(answer)
    assert isinstance(found, list), found
    return found


@functools.cache
def _compiler() -> subprocess.Popen[str]:
    """One process for all that is compiled here: most of its time goes into its imports. It ends with this one."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "0"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def compiled(module: str, name: str, target: str, *columns: int) -> list[dict]:
    promises = getattr(importlib.import_module(module), name)()
    return [
        {"columns": number} | binary(launch, target)
        for number in columns
        for launch in promises.launches(number, target)
    ]


def main() -> None:
    """Answer each line of the standard input: what `ahead` is asked for by its facts, or by how it failed."""
    for other, (multiprocessors, shared_memory) in OTHERS.items():
        TARGETS[other] = GPUTarget("cuda", int(other.removeprefix("sm_")), 32)
        stand_ins.MULTIPROCESSORS[other], stand_ins.SHARED_MEMORY[other] = multiprocessors, shared_memory
    for line in sys.stdin:
        with contextlib.redirect_stdout(sys.stderr):
            try:
                answer: object = compiled(*json.loads(line))
            except Exception:  # noqa: BLE001
                answer = traceback.format_exc()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
