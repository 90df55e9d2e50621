"""NVIDIA's disassembler, started once for many kernels: its start takes as long as to compile one."""

import re
import struct
from collections.abc import Sequence

from snippets.validation.compiled_code import tool

HEADER = struct.Struct("<IIQQQQIIQQ")  # of a section: name, type, flags, address, offset, size, link, info, …, entry
SYMBOL = struct.Struct("<IBBHQQ")  # name, …, …, section, value, size
TABLES = (b"", b".shstrtab", b".strtab", b".symtab", b".nv_debug_line_sass", b".rela.nv_debug_line_sass")
NAMES, STRINGS, SYMBOLS, LINES, PLACES = range(1, len(TABLES))
KINDS = {  # type, flags, link, info and size of an entry of each
    NAMES: (3, 0, 0, 0, 0), STRINGS: (3, 0, 0, 0, 0), SYMBOLS: (2, 0, STRINGS, 0, SYMBOL.size),
    LINES: (1, 0, 0, 0, 0), PLACES: (4, 0x40, SYMBOLS, LINES, 24),
}  # fmt: skip
CARRIED = b".text.", b".rel.text.", b".rela.text."
COMPILER = b".note.nv.tkinfo", b".note.nv.cuinfo", b".nv.compat"  # say sm_100a, where else the file has sm_100
OF = "__of"  # names are told apart by the number of their binary: forward_kernel__of7
CODE = re.compile(rf"^//-{{9,}} \.text\.\S+?{OF}(\d+) +-{{9,}}$(.*?)(?=^//-{{9,}} |\Z)", re.MULTILINE | re.DOTALL)
LABEL, WITHIN = re.compile(r"\.L_x_(\d+)"), re.compile(r"\.size\s+\S+,\((?!\.L_x_)")


def disassembled(cubins: Sequence[bytes]) -> list[str]:
    """What `nvdisasm -gp -ndf -c` prints of the code in each of these binaries, which are for one GPU."""
    listing = tool("nvdisasm", "-gp", "-ndf", "-c", merged(cubins))
    texts = [listing.partition("//-----")[0]] * len(cubins)
    for number, text in CODE.findall(listing):
        texts[int(number)] += text
    return [_alone(text.replace(f"{OF}{number}", "")) for number, text in enumerate(texts)]


def _alone(text: str) -> str:
    """With the labels counted from 0; before the last one, at the end, come the ends of functions within."""
    labels = sorted(set(map(int, LABEL.findall(text))))
    numbers = {label: number for number, label in enumerate(labels)}
    if labels:
        numbers[labels[-1]] += len(WITHIN.findall(text))
    return LABEL.sub(lambda label: f".L_x_{numbers[int(label[1])]}", text)


def merged(cubins: Sequence[bytes]) -> bytes:
    """One ELF file with the code of several, and what says which lines of the PTX it came from."""
    contents = [bytearray() for _ in TABLES]
    contents[STRINGS] += b"\0"
    headers = [
        [0] * 10,
        *([0, kind, flags, 0, 0, 0, link, info, 1, entry] for kind, flags, link, info, entry in KINDS.values()),
    ]
    names = [*TABLES]
    for number, cubin in enumerate(cubins):
        end = f"{OF}{number}\0".encode()
        sections = _sections(cubin)
        by_name = {name: content for name, _, content in sections}
        before, lines = len(contents[SYMBOLS]) // SYMBOL.size, len(contents[LINES])
        own = [index for index, (name, *_) in enumerate(sections) if name.startswith(CARRIED)]
        own += [index for index, (name, *_) in enumerate(sections) if name in COMPILER and not number]
        places = {index: len(headers) + at for at, index in enumerate(own)}
        places |= {index: TABLES.index(name) for index, (name, *_) in enumerate(sections) if name in TABLES}
        for name, *rest, section, value, size in SYMBOL.iter_unpack(by_name[b".symtab"]):
            text = _text(by_name[b".strtab"], name)
            at = len(contents[STRINGS]) if text else 0
            contents[STRINGS] += text + end if text else b""
            section = places.get(section, 0) if section < 0xFF00 else section
            contents[SYMBOLS] += SYMBOL.pack(at, *rest, section, value, size)
        contents[LINES] += by_name[b".nv_debug_line_sass"]
        for name, header, content in sections:
            if name in (TABLES[PLACES], TABLES[PLACES].replace(b"a", b"", 1)):
                contents[PLACES] += _moved(content, header[9], lines, before, bytes(24 - header[9]))
        for index in own:
            name, header, content = sections[index]
            relocates, says = name.startswith(b".rel"), name in COMPILER
            header[6] = places.get(header[6], 0)
            header[7] = (
                places.get(header[7], 0) if relocates or says else header[7] + before
            )  # a section; the symbol of the kernel
            headers.append(header)
            names.append(name if name in COMPILER else name + end[:-1])
            contents.append(bytearray(_moved(content, header[9], 0, before) if relocates else content))
    return _file(cubins[0][:64], names, headers, contents)


def _sections(cubin: bytes) -> list[tuple[bytes, list[int], bytes]]:
    """Name, header and content of each."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    _, number, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [[*HEADER.unpack_from(cubin, table + index * HEADER.size)] for index in range(number)]
    return [(_text(cubin, headers[names][4] + h[0]), h, cubin[h[4] : h[4] + h[5]]) for h in headers]


def _text(strings: bytes, at: int) -> bytes:
    return strings[at : strings.index(b"\0", at)]


def _moved(relocations: bytes, size: int, offset: int, symbols: int, more: bytes = b"") -> bytes:
    """Relocations of what lies this much further, by symbols that so many others precede."""
    found = bytearray()
    for start in range(0, len(relocations), size):
        at, info = struct.unpack_from("<QQ", relocations, start)
        found += struct.pack("<QQ", at + offset, info + (symbols << 32)) + relocations[start + 16 : start + size] + more
    return bytes(found)


def _file(start: bytes, names: list[bytes], headers: list[list[int]], contents: list[bytearray]) -> bytes:
    file = bytearray(start)
    for name, header in zip(names, headers, strict=True):
        header[0] = len(contents[NAMES])
        contents[NAMES] += name + b"\0"
    for header, content in zip(headers, contents, strict=True):
        file += bytes(-len(file) % 128)
        header[4:6] = (len(file), len(content)) if header[1] else (0, 0)
        file += content
    struct.pack_into("<QQ", file, 0x20, 0, len(file))  # no segments; where the headers of sections begin
    struct.pack_into("<HHHHHH", file, 0x34, 64, 0, 0, HEADER.size, len(headers), NAMES)
    return bytes(file) + b"".join(HEADER.pack(*header) for header in headers)
