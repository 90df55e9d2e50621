"""What did the compiler make of a Triton kernel? Its facts and its listings, for any GPU, on a machine with none.

    python -m snippets.validation.compiled_code my_kernels.py:scale --signature "*bf16:16, *bf16:16, i32:16, 1024"

The signature has an entry for each argument: a type, with :16 where 16 divides the value (an address, a size, a stride)
and :1 where it is 1, or the value itself of a constexpr. It is what Triton's launcher finds out at a call.
"""

import argparse
import ast
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel

# --8<-- [start:targets]
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),  # A100
    "sm_90": GPUTarget("cuda", 90, 32),  # H100, H200
    "sm_100": GPUTarget("cuda", 100, 32),  # B200
    "gfx942": GPUTarget("hip", "gfx942", 64),  # MI300X
}
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"  # in triton's wheel
# --8<-- [end:targets]


class Refused(ValueError):
    """What was asked for cannot be compiled; the message says what was expected and what came."""


# --8<-- [start:signature]
_TYPE = re.compile(r"\*?(i1|i8|i16|i32|i64|u8|u16|u32|u64|fp8e4nv|fp8e5|fp16|bf16|fp32|fp64)")


def source_of(kernel: triton.JITFunction, signature: Sequence[str]) -> ASTSource:
    """A kernel with the types and values that a launch would give it, one entry for each parameter.

    Raises:
        Refused: there are more or fewer entries than parameters, or one does not fit its parameter.
    """
    names = kernel.arg_names
    if len(signature) != len(names):
        raise Refused(f"signature: expected {len(names)} entries ({', '.join(names)}), got {len(signature)}")
    types: dict[str, str] = {}
    constants: dict[tuple[int], object] = {}
    attributes: dict[tuple[int], list] = {}
    for index, (parameter, entry) in enumerate(zip(kernel.params, signature, strict=True)):
        name, (kind, _, hint) = parameter.name, entry.partition(":")
        if parameter.is_constexpr or not _TYPE.fullmatch(kind):
            try:
                value = ast.literal_eval(entry)
            except (ValueError, SyntaxError):
                expected = "the value of a constexpr" if parameter.is_constexpr else "a type such as *bf16, i32 or fp32"
                raise Refused(f"{name}: expected {expected}, got {entry!r}") from None
            if not parameter.is_constexpr and value is not None:
                raise Refused(f"{name}: expected a type such as *bf16, i32 or fp32, or None, got {entry!r}")
            types[name], constants[(index,)] = "constexpr", value
        elif hint == "1":
            types[name], constants[(index,)] = "constexpr", 1
        elif hint in ("", "16"):
            types[name] = kind
            if hint:
                attributes[(index,)] = [["tt.divisibility", 16]]
        else:
            raise Refused(f"{name}: expected :16 or :1 after the type, got {entry!r}")
    return ASTSource(kernel, types, constants, attributes)


# --8<-- [end:signature]


# --8<-- [start:compile]
def compile_for(source: ASTSource, target: str, **options: object) -> tuple[CompiledKernel, float]:
    """The compiled kernel, and the seconds that took (next to none if Triton's cache has it).

    Args:
        target: one of TARGETS.
        options: num_warps, num_stages, maxnreg and others, as at a launch.

    Raises:
        Refused: the target is unknown, or Triton does not compile the kernel.
    """
    if target not in TARGETS:
        raise Refused(f"target: expected one of {', '.join(TARGETS)}, got {target!r}")
    start = time.perf_counter()
    try:
        compiled = triton.compile(source, target=TARGETS[target], options=options)
    except Exception as error:  # Triton raises many kinds
        raise Refused(f"{source.fn.__name__} does not compile for {target}:\n{error}") from error
    return compiled, time.perf_counter() - start


# --8<-- [end:compile]


# --8<-- [start:facts]
@dataclass(frozen=True)
class Facts:
    """What a kernel is made of. Loads and stores: how many instructions of how many bits, to global memory."""

    kernel: str
    target: str
    registers: int  # a thread
    spilled: int  # bytes a thread, in local memory
    shared: int  # bytes
    warps: int
    size: int  # bytes of machine code
    instructions: int
    loads: dict[int, int]
    stores: dict[int, int]
    tensor_core: int
    shuffles: int
    barriers: int
    fp64: int


_CUDA = {
    "loads": r"LDG|LDGSTS|UTMALDG", "stores": r"STG|UTMASTG", "tensor_core": r"[HIQBD]G?MMA|UTC\w*MMA",
    "shuffles": r"SHFL", "barriers": r"BAR|WARPSYNC|SYNCS", "fp64": r"D(?:ADD|MUL|FMA|MNMX|SETP|MMA)",
}  # fmt: skip
_HIP = {
    "loads": r"(?:global|buffer|flat)_load\w*", "stores": r"(?:global|buffer|flat)_store\w*",
    "tensor_core": r"v_s?mfmac?_\w+", "shuffles": r"ds_b?permute\w*|ds_swizzle\w*|v_\w+_dpp",
    "barriers": r"s_barrier\w*", "fp64": r"v_(?:add|mul|fma|max|min|cmp)\w*_f64\w*",
}  # fmt: skip
_BITS = {"byte": 8, "ubyte": 8, "sbyte": 8, "short": 16, "ushort": 16, "sshort": 16, "dword": 32, "b32": 32,
         "dwordx2": 64, "b64": 64, "dwordx3": 96, "b96": 96, "dwordx4": 128, "b128": 128}  # fmt: skip


def bits(opcode: str) -> int:
    """How wide an access of a thread is: 128 of LDG.E.128, 16 of STG.E.U16, 64 of global_load_dwordx2."""
    if opcode[0].isupper():
        named = [int(part.strip("US")) for part in opcode.split(".") if re.fullmatch(r"[US]?(8|16|64|128)", part)]
        return named[0] if named else 32
    return next((_BITS[part] for part in opcode.split("_") if part in _BITS), 32)


def facts(compiled: CompiledKernel, target: str) -> Facts:
    """Read off the machine code, and off the resources that its header asks for."""
    return facts_of([line.opcode for line in machine_code(compiled) if line.opcode], compiled, target)


def facts_of(opcodes: Sequence[str], compiled: CompiledKernel, target: str) -> Facts:
    """The facts of a kernel whose machine code has these instructions."""
    cuda = TARGETS[target].backend == "cuda"
    found = {
        kind: [opcode for opcode in opcodes if re.fullmatch(pattern, opcode.split(".")[0])]
        for kind, pattern in (_CUDA if cuda else _HIP).items()
    }
    if cuda:
        usage = tool("cuobjdump", "-res-usage", compiled.asm["cubin"])
        registers, spilled = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("REG", "STACK"))
        size = 16 * len(opcodes)
    else:
        text = compiled.asm["amdgcn"]
        registers = int(re.search(r"\.vgpr_count:\s+(\d+)", text)[1])
        spilled = int(re.search(r"\.private_segment_fixed_size:\s+(\d+)", text)[1])
        size = int(re.search(r"codeLenInByte = (\d+)", text)[1])
    return Facts(
        kernel=compiled.metadata.name, target=target, registers=registers, spilled=spilled,
        shared=compiled.metadata.shared, warps=compiled.metadata.num_warps, size=size,
        instructions=sum(opcode not in ("NOP", "s_nop") for opcode in opcodes),
        loads=dict(Counter(map(bits, found.pop("loads")))), stores=dict(Counter(map(bits, found.pop("stores")))),
        **{kind: len(those) for kind, those in found.items()},
    )  # fmt: skip


# --8<-- [end:facts]


# --8<-- [start:lines]
@dataclass(frozen=True)
class Line:
    """A line of a listing; of an instruction the opcode, and the line of the kernel's file that it came from."""

    text: str
    opcode: str = ""
    source: int | None = None


SASS = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")


@functools.cache  # to disassemble takes a moment, and facts, troubles and listings all read it
def machine_code(compiled: CompiledKernel) -> list[Line]:
    """SASS or AMDGCN. SASS names lines of the PTX, and PTX those of the kernel, also through what was inlined."""
    file = _file(compiled).name
    if "amdgcn" in compiled.asm:
        return assembly(compiled.asm["amdgcn"], file)
    made_of = [line.source for line in assembly(compiled.asm["ptx"], file)]
    lines, at = [], None
    for text in tool("nvdisasm", "-gp", "-ndf", "-c", compiled.asm["cubin"]).splitlines():
        if place := re.search(r'nv_debug_ptx_txt", line (\d+)', text):
            at = made_of[int(place[1]) - 1] if int(place[1]) <= len(made_of) else None
        elif found := SASS.match(text):
            lines.append(Line(text, found[1], at))
        elif text.strip() and not text.lstrip().startswith("//"):
            lines.append(Line(text))
    return lines


def assembly(text: str, file: str) -> list[Line]:
    """PTX or AMDGCN, whose .loc lines say in a comment where what follows came from: x.py:3:4 @[ kernel.py:5:6 ]."""
    lines, at = [], None
    for line in text.splitlines():
        if re.match(r"\s*\.loc\s", line):
            place = re.search(rf"{re.escape(file)}:([1-9]\d*)", line)  # a line 0 is of what the compiler added
            at = int(place[1]) if place else None
        opcode = re.match(r"\s+(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s", line)
        lines.append(Line(line, opcode[1] if opcode else "", at if opcode else None))
    return lines


def ir(text: str, file: str) -> list[Line]:
    """TTIR or TTGIR, in which each operation ends in loc(#loc7), and #loc7 may refer to others."""
    known = dict(re.findall(r"^(#loc\w*) = loc\((.*)\)$", text, re.MULTILINE))

    def place(reference: str) -> int | None:
        if found := re.search(rf'{re.escape(file)}":(\d+)', reference):
            return int(found[1])
        others = (place(known[name]) for name in re.findall(r"#loc\w*", reference) if name in known)
        return next((line for line in others if line is not None), None)

    lines = []
    for line in text.splitlines():
        if line.startswith("#loc"):
            continue
        operation = re.match(r"\s+(?:%[\w:, %]+ = )?\"?([a-z]\w*\.\w+)", line)
        reference = re.search(r" loc\((.*)\)$", line)
        at = place(reference[1]) if operation and reference else None
        text = re.sub(r' loc\("\w+"\(#loc\d*\)\)', "", re.sub(r" loc\(.*\)$", "", line))  # operations', arguments'
        lines.append(Line(text, operation[1] if operation else "", at))
    return lines


def listings(compiled: CompiledKernel) -> dict[str, list[Line]]:
    """Every form of a kernel, from Triton's intermediate language to the machine's, without tables for debuggers."""
    file = _file(compiled).name
    forms = {form: ir(compiled.asm[form], file) for form in ("ttir", "ttgir")}
    if "ptx" in compiled.asm:
        forms["ptx"] = list(code(assembly(compiled.asm["ptx"], file)))
    return forms | {"sass" if "cubin" in compiled.asm else "amdgcn": list(code(machine_code(compiled)))}


_SET_ASIDE = re.compile(
    r"\s*($|//|;|[.$]L_*(tmp|func)|"
    r"\.(loc|file|cfi\w*|headerflags|elftype|section\w*|align|p2align|global|globl|type|size|other|text)\b)"
)


def code(lines: Sequence[Line]) -> Iterator[Line]:
    """Instructions, without their addresses, and the labels that they jump to, up to the tables that follow them."""
    for line in lines:
        if re.match(r"\s*\.section\s+\.(debug|rodata|AMDGPU)", line.text):
            return
        if not _SET_ASIDE.match(line.text):
            text = re.sub(r"^\s+/\*\w+\*/\s+", "    ", line.text).replace("\t", "    ").rstrip()
            yield Line(text, line.opcode, line.source)


# --8<-- [end:lines]


# --8<-- [start:troubles]
_TROUBLES = {"spilled registers": r"LDL|STL|scratch_(?:load|store)\w*", "fp64": f"{_CUDA['fp64']}|{_HIP['fp64']}"}


def troubles(compiled: CompiledKernel) -> dict[str, Counter[int | None]]:
    """What a fast kernel should not have: how many instructions of it came from which line of the kernel."""
    found: dict[str, Counter[int | None]] = {}
    for line in machine_code(compiled):
        name = line.opcode.split(".")[0]
        kinds = [kind for kind, pattern in _TROUBLES.items() if re.fullmatch(pattern, name)]
        if re.fullmatch(f"{_CUDA['loads']}|{_CUDA['stores']}|{_HIP['loads']}|{_HIP['stores']}", name):
            kinds += [f"accesses of {bits(line.opcode)} bits"] if bits(line.opcode) < 32 else []
        for kind in kinds:
            found.setdefault(kind, Counter())[line.source] += 1
    return found


# --8<-- [end:troubles]


def _file(compiled: CompiledKernel) -> Path:
    return Path(compiled.src.fn.fn.__code__.co_filename)


def tool(name: str, *arguments: str | bytes) -> str:
    """The output of one of NVIDIA's tools on a binary, its last argument."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(arguments[-1])
        file.flush()
        command = [_TOOLS / name, *arguments[:-1], file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


# --8<-- [start:command]
def load(place: str) -> triton.JITFunction:
    """The kernel of FILE.py:NAME.

    Raises:
        Refused: there is no such file, it does not run, or it has no such kernel.
    """
    path, _, name = place.rpartition(":")
    if not name or not Path(path).is_file():
        raise Refused(f"kernel: expected FILE.py:NAME of an existing file, got {place!r}")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise Refused(f"{path} does not run: {type(error).__name__}: {error}") from error
    kernel = getattr(module, name, None)
    if isinstance(kernel, triton.JITFunction):
        return kernel
    kernels = sorted(key for key, value in vars(module).items() if isinstance(value, triton.JITFunction))
    raise Refused(f"{path} has no @triton.jit function {name!r}; it has {', '.join(kernels) or 'none'}")


def table(kernels: Sequence[Facts]) -> str:
    """The facts of one kernel, a column for each target."""
    rows = []
    for name in [name for name in asdict(kernels[0]) if name not in ("kernel", "target")]:
        values = [getattr(facts, name) for facts in kernels]
        rows.append([name.replace("_", " "), *(_shown(value) for value in values)])
    rows.insert(0, ["", *(facts.target for facts in kernels)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _shown(value: int | dict[int, int]) -> str:
    if isinstance(value, int):
        return str(value)
    return ", ".join(f"{count} of {width} bits" for width, count in sorted(value.items(), reverse=True)) or "none"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the facts and the troubles; with --out write the listings. 2 if the kernel does not compile as asked."""
    parser = argparse.ArgumentParser(
        prog="python -m snippets.validation.compiled_code", description=__doc__.split("\n")[0]
    )
    parser.add_argument("kernel", help="FILE.py:NAME of a @triton.jit function")
    parser.add_argument("--signature", required=True, help='an entry for each argument: "*bf16:16, i32:16, fp32, 1024"')
    parser.add_argument("--target", nargs="+", default=["sm_90"], help=f"of {', '.join(TARGETS)} (default: sm_90)")
    parser.add_argument("--num-warps", type=int, default=4)
    parser.add_argument("--num-stages", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a folder for the listings, and for the facts as JSON")
    asked = parser.parse_args(arguments)
    try:
        found = dict(_compiled(asked))
    except Refused as error:
        print(error, file=sys.stderr)
        return 2
    print(table([facts(compiled, target) for target, compiled in found.items()]))
    for target, compiled in found.items():
        for line in report(compiled, target):
            print(line)
        if asked.out:
            write(compiled, target, asked.out)
    return 0


def _compiled(asked: argparse.Namespace) -> Iterator[tuple[str, CompiledKernel]]:
    source = source_of(load(asked.kernel), [entry.strip() for entry in asked.signature.split(",")])
    for target in asked.target:
        compiled, seconds = compile_for(source, target, num_warps=asked.num_warps, num_stages=asked.num_stages)
        print(f"{compiled.metadata.name} for {target}: compiled in {seconds:.1f} s", file=sys.stderr)
        yield target, compiled


def report(compiled: CompiledKernel, target: str) -> Iterator[str]:
    """The troubles, each with the lines that it came from, worst first."""
    source = _file(compiled).read_text().splitlines()
    for kind, lines in troubles(compiled).items():
        yield f"\n{target}, {kind}: {lines.total()}"
        for number, count in lines.most_common(5):
            text = textwrap.shorten(source[number - 1], 84, placeholder=" …") if number else ""
            yield f"{count:4} from line {number}: {text}" if number else f"{count:4} from no line"


def write(compiled: CompiledKernel, target: str, folder: Path) -> None:
    """A file for each form, and the facts."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{compiled.metadata.name}.{target}"
    (folder / f"{stem}.json").write_text(json.dumps(asdict(facts(compiled, target)), indent=1) + "\n")
    for form, lines in listings(compiled).items():
        (folder / f"{stem}.{form}").write_text(as_text(lines))


def as_text(lines: Sequence[Line]) -> str:
    """A listing. Behind an instruction stands the line of the kernel that it came from."""
    return "".join(f"{line.text}    // line {line.source}\n" if line.source else f"{line.text}\n" for line in lines)


if __name__ == "__main__":
    if triton.knobs.runtime.interpret:  # as for tests on a CPU; whether to, triton asks when it is imported
        command = [sys.executable, *sys.orig_argv[1:]]
        sys.exit(subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "0"}).returncode)
    sys.exit(main())
# --8<-- [end:command]
