"""CUDA C++ kernels on a CPU: the same source through g++, with what on_host.h has in the place of a GPU."""

import ctypes
import functools
import hashlib
import re
import shutil
import struct
import subprocess
from pathlib import Path
from types import ModuleType

HEADER = Path(__file__).with_suffix(".h")
CACHE = Path(__file__).parents[2] / ".cache" / "on-host"
GXX = shutil.which("g++")


@functools.cache
def built(source: Path, macros: tuple[str, ...], names: tuple[str, ...]) -> ctypes.CDLL:
    """A library with on_host_NAME(blocks, threads, pointers to the arguments) for each kernel."""
    text = re.sub(r"// --8<-- \[start:instructions\].*?\[end:instructions\]", "", source.read_text(), flags=re.DOTALL)
    text = text.replace("extern __shared__ uint4 ring[];", "static uint4 ring[1 << 14];")
    entry = 'extern "C" void on_host_{0}(int b, int t, void** at) {{ launch({0}, b, t, at); }}\n'
    program = f'#include "{HEADER}"\n{text}\n' + "".join(entry.format(name) for name in names)
    key = hashlib.sha256("\0".join((program, HEADER.read_text(), *macros)).encode()).hexdigest()[:24]
    library = CACHE / f"{key}.so"
    if not library.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        made = CACHE / f"{key}.{id(program)}"
        flags = "-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-x", "c++"
        command = [GXX, *flags, *(f"-D{macro}" for macro in macros), "-o", made, "-"]
        subprocess.run(command, input=program, text=True, check=True)
        made.replace(library)
    return ctypes.CDLL(str(library))


class Kernel:
    """Called as the `_Kernel` of a kernel file is, for tensors on a CPU."""

    def __init__(self, module: ModuleType, macros: tuple[str, ...], name: str, form: str, threads: int, resident: int):
        self.call = getattr(built(module._SOURCE, macros, (name,)), f"on_host_{name}")
        self.form, self.threads, self.resident = form, threads, resident

    def __call__(self, blocks: int, *arguments: float) -> None:
        values = ctypes.create_string_buffer(struct.pack(self.form, *arguments), 8 * 16)
        pointers = (ctypes.c_void_p * 16)(*(ctypes.addressof(values) + 8 * i for i in range(16)))
        self.call(blocks, self.threads, pointers)
