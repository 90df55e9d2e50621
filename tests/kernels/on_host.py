"""CUDA C++ kernels on a CPU: the same source through g++, with what on_host.h has in the place of a GPU."""

import contextlib
import ctypes
import functools
import hashlib
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.benchmarks import cuda

HEADER = Path(__file__).parent / "on_host.h"
CACHE = Path(__file__).parents[2] / ".cache" / "on-host"
GXX = shutil.which("g++")
needs_compiler = pytest.mark.skipif(GXX is None, reason="needs g++")


FLAGS = "-std=c++17", "-O1", "-fPIC", "-w"


def made(program: str, source: str, result: str, flags: tuple[str, ...]) -> Path:
    """What g++ makes of a program, made once: the file `result`, beside the program as `source`."""
    folder = CACHE / hashlib.sha256("\0".join((program, source, *FLAGS, *flags)).encode()).hexdigest()[:24]
    if not (folder / result).exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=CACHE))
        (new / source).write_text(program)
        subprocess.run([str(GXX), *FLAGS, *flags, "-o", result, source], cwd=new, check=True)
        try:
            new.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(new)
    return folder / result


@functools.cache
def header() -> Path:
    """The header, beside what g++ knows of it: to read it takes half the time that a kernel takes."""
    return made(HEADER.read_text(), HEADER.name, f"{HEADER.name}.gch", ("-x", "c++-header")).with_name(HEADER.name)


@functools.cache
def built(source: Path, macros: tuple[str, ...], name: str) -> Callable:
    """A kernel as a function of blocks, threads, and pointers to the arguments."""
    text = re.sub(r"// --8<-- \[start:instructions\].*?\[end:instructions\]", "", source.read_text(), flags=re.DOTALL)
    text = text.replace("extern __shared__ uint4 ring[];", "static uint4 ring[1 << 14];")
    entry = f'extern "C" void on_host(int blocks, int threads, void** at) {{ launch({name}, blocks, threads, at); }}'
    program = f'#include "{header()}"\n{text}\n{entry}\n'
    library = made(program, "kernel.cpp", "kernel.so", ("-shared", *(f"-D{macro}" for macro in macros)))
    return ctypes.CDLL(str(library)).on_host


class Kernel:
    """Called as the `_Kernel` of a kernel file is."""

    def __init__(self, source: Path, macros: tuple[str, ...], name: str, form: str, threads: int, resident: int):
        self.call = built(source, macros, name)
        self.form, self.threads, self.resident = form, threads, resident

    def __call__(self, blocks: int, *arguments: float) -> None:
        values = ctypes.create_string_buffer(struct.pack(self.form, *arguments), 8 * 16)
        pointers = (ctypes.c_void_p * 16)(*(ctypes.addressof(values) + 8 * i for i in range(16)))
        self.call(blocks, self.threads, pointers)


@contextlib.contextmanager
def on_host(module: ModuleType, resident: int = 3, **options: int) -> Iterator[None]:
    """A kernel file's functions `_forward` and `_backward`, on a CPU.

    Args:
        resident: blocks that are said to run at once.
        options: what the launch tables choose, if anything.
    """

    def kernel(macros: tuple, name: str, form: str, threads: int, shared: int, device: int) -> Kernel:
        return Kernel(module._SOURCE, macros, name, form, threads, resident)

    with cuda.instead(module, kernel), pytest.MonkeyPatch.context() as patch:
        for name in ("_forward_launch", "_backward_launch") if options else ():
            patch.setattr(module, name, lambda *_: options)
        yield
