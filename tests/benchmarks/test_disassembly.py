"""Binaries that are disassembled together read as each does alone: with labels, names, and the lines of their PTX."""

import re
import subprocess
from pathlib import Path

import pytest

from snippets.validation.compiled_code import _TOOLS, tool
from tests.benchmarks.disassembly import disassembled

KERNEL = """
.version 8.6
.target {target}
.address_size 64
{more}
.visible .entry kernel(.param .u64 at, .param .u32 n)
{{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [at];
    ld.param.u32 %r1, [n];
    cvta.to.global.u64 %rd2, %rd1;
again:
    ld.global.u32 %r2, [%rd2];
    {operation}.u32 %r3, %r2, %r1;
    st.global.u32 [%rd2], %r3;
    {call}
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra again;
    ret;
}}
"""
FUNCTION = ".func other() { trap; ret; }"  # whose place a call has as a relocation


def made(folder: Path, target: str, operation: str, more: str = "", call: str = "") -> bytes:
    """A binary whose one kernel is called as that of every other."""
    (folder / "a.ptx").write_text(KERNEL.format(target=target, operation=operation, more=more, call=call))
    command = [
        _TOOLS / ("ptxas-blackwell" if "sm_100" in target else "ptxas"),
        "-lineinfo",
        f"-arch={target}",
        "a.ptx",
        "-o",
        "a.cubin",
    ]
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "a.cubin").read_bytes()


def alone(cubin: bytes) -> list[str]:
    """The lines of the code of one, and those above it."""
    start, *sections = re.split(
        r"^//-{9,} (\S+) +-{9,}$", tool("nvdisasm", "-gp", "-ndf", "-c", cubin), flags=re.MULTILINE
    )
    code = [text for name, text in zip(sections[::2], sections[1::2], strict=True) if name.startswith(".text.")]
    return lines(start + "".join(code))


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("target", ("sm_80", "sm_100a"))
def test_several_at_once_read_as_each_alone(tmp_path: Path, target: str):
    several = [made(tmp_path, target, operation) for operation in ("add", "sub")]
    several.insert(1, made(tmp_path, target, "add", more=FUNCTION, call="call other;"))
    found = disassembled(several)
    assert [lines(text) for text in found] == [alone(cubin) for cubin in several]
    assert len(set(found)) == 3 and all("nv_debug_ptx_txt" in text and "`(.L_x_0)" in text for text in found)
