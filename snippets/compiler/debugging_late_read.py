"""What a process printed in which a bug ran: the error, its line, the GPU's words, a tool's report."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCKING = {"CUDA_LAUNCH_BLOCKING": "1"}
ALLOCATIONS = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
STACKS = {"TORCH_SHOW_CPP_STACKTRACES": "1"}


def run(bug: str, variables: Mapping[str, str] | None = None, tool: tuple[str, ...] = ()) -> str:
    """Everything that a process prints in which the bug runs, and how it ends."""
    command = [*tool, sys.executable, "-m", "snippets.compiler.debugging_late", bug]
    settings = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"} | (variables or {})
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    try:
        done = subprocess.run(command, cwd=ROOT, env=settings, text=True, errors="replace", timeout=150, **both)
    except subprocess.TimeoutExpired:
        return "no end within 150 s"
    return f"{done.stdout}\nstatus {done.returncode}"


# --8<-- [start:read]
def raised(text: str) -> list[str]:
    """The first sentence of each error in a traceback, without its module."""
    return [found[1].split(". GPU ")[0] for found in re.finditer(r"^(?:[\w.]+\.)?(\w+Error: .+)", text, re.MULTILINE)]


def line(text: str) -> str:
    """The line of a traceback that is nearest to the error, of this file or of generated code."""
    ours = r"\S*/(?:debugging_late|c[a-z2-7]{50,})\.py"
    frames = re.findall(rf'^  File "{ours}", line \d+, in .+\n    (.+)', text, re.MULTILINE)
    return frames[-1] if frames else "no line"


def asserted(text: str) -> str:
    """What the first thread that failed an assertion wrote, without the hash that names generated code."""
    found = re.search(r"^\S*?([^/\s]+\.\w+:\d+: .*?): block: .* (Assertion .*)", text, re.MULTILINE)
    return re.sub(r"^c[a-z2-7]{50,}", "c…", f"{found[1]}: {found[2]}") if found else "no assertion"


# --8<-- [end:read]
def sanitized(text: str) -> list[str]:
    """The first report of compute-sanitizer, without addresses of machine code."""
    lines = [re.sub(r"^=+ ?", "", said).strip() for said in text.splitlines() if said.startswith("====")]
    first = next((i for i, said in enumerate(lines) if said.startswith("Invalid")), None)
    if first is None:
        return [said for said in lines if "ERROR SUMMARY" in said or "Error" in said][-1:] or ["no report"]
    return [re.sub(r"\+0x[0-9a-f]+| in \S+\.py:\d+", "", said) for said in lines[first : first + 4]]


def named(bug: str, variables: Mapping[str, str], options: tuple[str, ...] = ()) -> str:
    """A run: the bug, and under what."""
    return ", ".join([bug, *(f"{name}={value}" for name, value in variables.items()), *options])


def shown(name: str, text: str) -> str:
    """What was raised, and at which line; an error that was raised on the way out of another stands behind it."""
    parts = text.split("During handling of the above exception")
    return "\n".join([name, *(f"  {words}\n  at  {line(part)}" for part in parts for words in raised(part)[-1:])])


USUAL, PADDED = ("compute-sanitizer",), ("compute-sanitizer --padding 4096",)
FAR: list[tuple[str, dict[str, str], tuple[str, ...]]] = [
    ("index 8", {}, ()), ("index 8", {}, USUAL), ("index 8", ALLOCATIONS, USUAL),
    ("index 128", {}, ()), ("index 128", ALLOCATIONS, USUAL), ("index 128", ALLOCATIONS, PADDED),
]  # fmt: skip


def both(said: Mapping[str, str], bug: str) -> str:
    return "\n".join(shown(name, said[name]) for name in (bug, named(bug, BLOCKING)))


def print_what_follows(said: Mapping[str, str]) -> None:
    """What no error tells, and what a process can do after one."""
    print("==== unasked")
    print("\n".join(text for text in said["unasked"].splitlines() if re.match(r"[\d.-]+$|\w*Error|status", text)))
    print("==== dead")
    print("\n".join(text for text in said["dead"].splitlines() if re.match(r".{17}(works|\w+Error)", text)))
    print(f"{'a new process':<17}", "works" if "no error" in said["index 8"] else "fails", sep="")


def print_out_of_bounds(said: Mapping[str, str]) -> None:
    """What a tool sees of an index that is too large, the stack of an error, and an error of a CUDA graph."""
    print("==== too far")
    for name in (named(*asked) for asked in FAR):
        found = re.search(r"no error, .*|no compute-sanitizer", said[name])
        print(name, f"  {found[0] if found else 'no result'}", sep="\n")
        print("".join(f"  {text}\n" for text in sanitized(said[name]) if "compute-sanitizer" in name), end="")
    print("==== stack")
    for name in (named("embedding", STACKS), named("embedding", BLOCKING | STACKS)):
        found = re.search(r"^Exception raised from .*? at \S+", said[name], re.MULTILINE)
        print(name, f"  {found[0] if found else 'no stack'}", sep="\n")
    print("==== graph")
    print(both(said, "replayed"))
    print(f"  the GPU wrote  {asserted(said['replayed'])}")
    print(shown("waits_while_recording", said["waits_while_recording"]))
