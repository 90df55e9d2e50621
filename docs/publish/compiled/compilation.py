"""One kernel as one launcher gets it: what it is compiled from, and what is seen of what it became."""

import functools
import hashlib
import importlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import triton
from triton.compiler import ASTSource, CompiledKernel

from docs.publish import kept
from snippets.validation import compiled_code
from tests.benchmarks.disassembly import disassembled
from tests.benchmarks.launches import Launch, specialised
from tests.benchmarks.source import ROOT

CACHE = Path(".cache/compiled")
TIMED = "sm_90"  # the target that PUBLISHED_MACHINE is
TOOL = "snippets/validation/compiled_code.py"


@dataclass(frozen=True)
class Compilation:
    """A kernel as one launcher gets it.

    Attributes:
        place: "kernels/softmax.py:_forward_kernel", relative to the root.
        signature, constants, attributes: as triton.compiler.ASTSource takes them.
        options: num_warps and others.
        listed: whether its listings are wanted, too.
        key: names the result: a hash of all that it depends on.
    """

    place: str
    signature: dict[str, str]
    constants: dict[tuple, Any]
    attributes: dict[tuple, Any]
    options: dict[str, Any]
    target: str
    listed: bool = False
    key: str = ""

    @property
    def function(self) -> str:
        return self.place.rpartition(":")[2]

    def keyed(self, kernel: triton.JITFunction) -> "Compilation":
        """With its key."""
        source = ASTSource(kernel, self.signature, self.constants, self.attributes)
        options = sorted(f"{name}={value}" for name, value in self.options.items())
        parts = triton.__version__, _tool_hash(), self.place, source.hash(), options, self.target
        return replace(self, key=kept.key(*parts))


Pair = tuple[Compilation, Compilation | None]


def of_launch(name: str, launch: Launch, target: str, listed: bool) -> Pair:
    """What the launcher of kernels/<name>.py compiles; and with its floats as fp64, if it has any.

    Inductor passes them so on some versions of torch. What becomes of them lies in the source, and neither in a shape
    nor in a target: so it is enough to look at the listed points on the GPU that is timed.
    """
    kernel = launch.kernel
    source, options = specialised(launch, target)
    place = f"kernels/{name}.py:{kernel.fn.__name__}"
    usual = Compilation(place, source.signature, source.constants, source.attrs, options, target, listed)
    signature = {name: "fp64" if kind == "fp32" else kind for name, kind in usual.signature.items()}
    if not listed or target != TIMED or signature == usual.signature:
        return usual.keyed(kernel), None
    return usual.keyed(kernel), replace(usual, signature=signature, listed=False).keyed(kernel)


@functools.cache
def _tool_hash() -> str:
    return hashlib.sha256((ROOT / TOOL).read_bytes()).hexdigest()


def compiled(compilations: Sequence[Compilation]) -> Iterator[dict[str, Any]]:
    """Facts, compile time and hash of each, all for one target; troubles and listings where they are wanted.

    Raises:
        compiled_code.Refused: Triton does not compile one.
    """
    binaries = [_compiled(compilation) for compilation in compilations]
    cubins = [binary.asm["cubin"] for binary, _ in binaries if "cubin" in binary.asm]
    listings = dict(zip(cubins, disassembled(cubins), strict=True)) if cubins else {}
    tool, assembly = compiled_code.tool, functools.lru_cache(1)(compiled_code.assembly)
    once: dict[str, Any] = {
        "tool": lambda name, *of: listings[of[-1]] if name == "nvdisasm" else tool(name, *of),
        "assembly": assembly,
    }
    for compilation, (binary, seconds) in zip(compilations, binaries, strict=True):
        with mock.patch.multiple(compiled_code, **once):
            seen = _seen(compilation, binary)
        compiled_code.machine_code.cache_clear()  # nobody looks at it again
        yield seen | {"seconds": seconds}


def _seen(compilation: Compilation, binary: CompiledKernel) -> dict[str, Any]:
    """All but the seconds."""
    facts = asdict(compiled_code.facts(binary, compilation.target))
    result: dict[str, Any] = {
        "facts": facts,
        "hash": hashlib.sha256(binary.asm["cubin" if "cubin" in binary.asm else "hsaco"]).hexdigest()[:16],
        "narrow": _narrow(binary),
        "troubles": {},
        "listings": {},
    }
    if compilation.listed or facts["spilled"] or facts["fp64"]:
        troubles = compiled_code.troubles(binary).items()
        result["troubles"] = {kind: dict(lines) for kind, lines in troubles}
    if compilation.listed:
        listings = compiled_code.listings(binary).items()
        result["listings"] = {form: compiled_code.as_text(lines) for form, lines in listings}
    return result


def _compiled(compilation: Compilation) -> tuple[CompiledKernel, float]:
    kernel = _kernel(compilation.place)
    source = ASTSource(kernel, compilation.signature, compilation.constants, compilation.attributes)
    return compiled_code.compile_for(source, compilation.target, **compilation.options)


def _narrow(binary: CompiledKernel) -> dict[str, list[int]]:
    """By line of the source, the widths in bits of its accesses to global memory that are narrower than 128."""
    found: dict[str, list[int]] = {}
    file = Path(binary.src.fn.fn.__code__.co_filename).name
    for line in compiled_code.assembly(binary.asm.get("ptx") or binary.asm["amdgcn"], file):
        if (bits := _width(line.opcode)) < 128:
            found.setdefault(str(line.source), []).append(bits)
    return found


@functools.cache
def _width(opcode: str) -> int:
    """Of an access to global memory, in bits; 128 of all else."""
    if ptx := re.match(r"(?:ld|st)\.global.*?(?:\.v(\d))?\.[a-z]+(\d+)$", opcode):
        return int(ptx[1] or 1) * int(ptx[2])
    amd = re.match(r"(?:global|buffer|flat)_(?:load|store)", opcode)
    return compiled_code.bits(opcode) if amd else 128


@functools.cache
def _kernel(place: str) -> triton.JITFunction:
    """A kernel of kernels/, or of a file elsewhere."""
    file, _, function = place.partition(":")
    if file.startswith("kernels/"):
        return getattr(importlib.import_module(file.removesuffix(".py").replace("/", ".")), function)
    return compiled_code.load(place)
