"""One kernel as one launcher gets it: what it is compiled from, and what is seen of what it became."""

import functools
import hashlib
import importlib
import itertools
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import triton
from triton.compiler import ASTSource, CompiledKernel

from docs.publish import kept
from snippets.validation import compiled_code
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
    together = iter(
        _opcodes(
            [binary for compilation, (binary, _) in zip(compilations, binaries, strict=True) if not compilation.listed]
        )
    )
    for compilation, (binary, seconds) in zip(compilations, binaries, strict=True):
        opcodes = _disassembled(binary) if compilation.listed else next(together)
        facts = asdict(compiled_code.facts_of(opcodes, binary, compilation.target))
        result = {
            "facts": facts,
            "seconds": seconds,
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
        yield result


def _compiled(compilation: Compilation) -> tuple[CompiledKernel, float]:
    kernel = _kernel(compilation.place)
    source = ASTSource(kernel, compilation.signature, compilation.constants, compilation.attributes)
    return compiled_code.compile_for(source, compilation.target, **compilation.options)


def _disassembled(binary: CompiledKernel) -> list[str]:
    """The opcodes of a binary whose machine code is listed, too, and therefore kept."""
    return [line.opcode for line in compiled_code.machine_code(binary) if line.opcode]


def _opcodes(binaries: Sequence[CompiledKernel]) -> list[list[str]]:
    """Of each. To start the disassembler takes as long as to compile a kernel, so NVIDIA's go through it in one."""
    if not binaries or "cubin" not in binaries[0].asm:
        return [_disassembled(binary) for binary in binaries]
    codes = [_text_section(binary.asm["cubin"]) for binary in binaries]
    architecture = re.search(r"\.target sm_(\w+)", binaries[0].asm["ptx"])
    assert architecture
    listing = compiled_code.tool("nvdisasm", "-ndf", "-b", f"SM{architecture[1]}", b"".join(codes)).splitlines()
    opcodes = iter([found[1] for line in listing if (found := compiled_code.SASS.match(line))])
    return [list(itertools.islice(opcodes, len(code) // 16)) for code in codes]


def _narrow(binary: CompiledKernel) -> dict[str, list[int]]:
    """By line of the source, the widths in bits of its accesses to global memory that are narrower than 128."""
    found: dict[str, list[int]] = {}
    file = Path(binary.src.fn.fn.__code__.co_filename).name
    for line in compiled_code.assembly(binary.asm.get("ptx") or binary.asm["amdgcn"], file):
        if ptx := re.match(r"(?:ld|st)\.global.*?(?:\.v(\d))?\.[a-z]+(\d+)$", line.opcode):
            bits = int(ptx[1] or 1) * int(ptx[2])
        elif re.match(r"(?:global|buffer|flat)_(?:load|store)", line.opcode):
            bits = compiled_code.bits(line.opcode)
        else:
            continue
        if bits < 128:
            found.setdefault(str(line.source), []).append(bits)
    return found


def _text_section(cubin: bytes) -> bytes:
    """The instructions in an ELF file: what its one section named .text.KERNEL holds."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, number, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + index * size) for index in range(number)]
    (section,) = (h for h in headers if cubin[headers[names][4] + h[0] :].startswith(b".text."))
    return cubin[section[4] : section[4] + section[5]]


@functools.cache
def _kernel(place: str) -> triton.JITFunction:
    """A kernel of kernels/, or of a file elsewhere."""
    file, _, function = place.partition(":")
    if file.startswith("kernels/"):
        return getattr(importlib.import_module(file.removesuffix(".py").replace("/", ".")), function)
    return compiled_code.load(place)
