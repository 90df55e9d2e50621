"""What the kernel files in CUDA C++ launch, on a GPU that need not be there, and what becomes of it."""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace
from unittest import mock

import torch

from snippets.validation.compiled_code import SASS, Facts, Line, facts_of, tool


@dataclass(frozen=True)
class Launch:
    """A kernel, as it was compiled and launched."""

    name: str
    macros: tuple[str, ...]
    threads: int
    shared: int
    blocks: int


@contextlib.contextmanager
def instead(module: ModuleType, kernel: Callable) -> Iterator[None]:
    """Nothing is compiled, and kernels are made by `kernel`, of their macros in the place of a cubin."""
    caches = [value for value in vars(module).values() if hasattr(value, "cache_clear")]
    with (
        mock.patch.object(module, "_cubin", lambda arch, macros: macros),
        mock.patch.object(module, "_Kernel", kernel),
        mock.patch.object(torch.cuda, "get_device_capability", lambda *_: (9, 0)),
    ):
        for cache in caches:
            cache.cache_clear()
        yield
    for cache in caches:
        cache.cache_clear()


def launched(module: ModuleType, call: Callable[[], object]) -> list[Launch]:
    """What a call on CPU tensors would launch on an H200; nothing runs."""
    launches: list[Launch] = []

    class Recorder:
        def __init__(self, macros: tuple, name: str, form: str, threads: int, shared: int, device: int):
            self.resident = 264
            self.seen = lambda blocks: launches.append(Launch(name, macros, threads, shared, blocks))

        def __call__(self, blocks: int, *arguments: float) -> None:
            self.seen(blocks)

    with instead(module, Recorder):
        call()
    return launches


@dataclass(frozen=True)
class MachineCode:
    """What a launched kernel became: its facts, and its instructions with lines of the source."""

    facts: Facts
    lines: tuple[Line, ...]
    cubin: bytes


def machine_code(module: ModuleType, launch: Launch, target: str) -> MachineCode:
    """Compiled for a GPU that need not be there, by the compiler that the kernel file finds."""
    cubin = module._cubin(target, launch.macros)
    listing = tool("nvdisasm", "-g", "-ndf", "-c", cubin)
    (code,) = re.findall(rf"^\.text\.{launch.name}:\n(.*?)(?=^//-----|\Z)", listing, re.MULTILINE | re.DOTALL)
    lines, at = [], None
    for text in code.splitlines():
        if place := re.search(rf'{module._SOURCE.name}", line (\d+)', text):
            at = int(place[1])
        elif found := SASS.match(text):
            lines.append(Line(text, found[1], at))
        elif text.strip() and not text.lstrip().startswith("//"):
            lines.append(Line(text))
    usage = tool("cuobjdump", "-res-usage", cubin)
    (used,) = re.findall(rf"Function {launch.name}:\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", usage)
    registers, stack, shared, local = map(int, used)
    metadata = SimpleNamespace(name=launch.name, shared=shared + launch.shared, num_warps=launch.threads // 32)
    binary = SimpleNamespace(asm={"cubin": cubin}, metadata=metadata)
    facts = facts_of([line.opcode for line in lines if line.opcode], binary, target)
    return MachineCode(replace(facts, registers=registers, spilled=stack + local), tuple(lines), cubin)
