"""Errors of a GPU: they come late, they end the process's use of the GPU, and some never come.

Run `python -m snippets.compiler.debugging_late`. Each bug runs in a process of its own. Without a GPU the lookups fail
at once, in clear words, and the rest is named and not run.
"""

import concurrent.futures
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from snippets.compiler.debugging_late_read import (
    BLOCKING,
    FAR,
    STACKS,
    asserted,
    both,
    line,
    named,
    print_out_of_bounds,
    print_what_follows,
    raised,
    run,
    shown,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


# --8<-- [start:stray]
@triton.jit
def stray(x, at):  # type: ignore[no-untyped-def]
    """Write to x at an index that nobody has checked."""
    tl.store(x + tl.load(at), 1.0)


def step(x: Tensor, at: Tensor) -> Tensor:
    stray[(1,)](x, at)
    y = x * 2
    return y.sum()


def illegal() -> None:
    x, at = torch.ones(8, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    step(x, at).item()
    at.fill_(1 << 40)
    busy()
    total = step(x, at)
    print("everything is launched")
    print(total.item())


def busy() -> None:
    """What the GPU still has to do, as in a real program."""
    torch.cuda._sleep(200_000_000)


# --8<-- [end:stray]


# --8<-- [start:lookups]
def embedding(rows: Tensor, index: Tensor) -> Tensor:
    return F.embedding(index, rows)


def gather(rows: Tensor, index: Tensor) -> Tensor:
    return rows.gather(1, index[:, None])


def cross_entropy(rows: Tensor, index: Tensor) -> Tensor:
    return F.cross_entropy(rows, index)


def lookup(function: Callable[[Tensor, Tensor], Tensor], compiled: bool, copies: int = 1) -> None:
    """Eight rows of eight, or eight classes: the index 8 is one too large."""
    call = torch.compile(function) if compiled else function
    rows, index = torch.ones(8, 8, device=DEVICE), torch.arange(8, device=DEVICE).repeat(copies)
    call(rows, index).sum().item()
    index[3] = 8
    if DEVICE == "cuda":
        busy()
    result = call(rows, index)
    print(result.sum().item())


# --8<-- [end:lookups]
LOOKUPS = (embedding, gather, cross_entropy)


# --8<-- [start:unasked]
def unasked() -> None:
    """The same lookup, compiled without the question."""
    torch._inductor.config.assert_indirect_indexing = False
    lookup(embedding, compiled=True)


# --8<-- [end:unasked]


# --8<-- [start:dead]
def dead() -> None:
    """What a process can still do after an error of a kernel."""
    before = torch.ones(8, device="cuda")
    still("the kernel", illegal)
    still("another tensor", lambda: torch.ones(8, device="cuda"))
    still("an older tensor", lambda: before.cpu())
    still("waiting", torch.cuda.synchronize)
    still("freeing memory", torch.cuda.empty_cache)
    still("is there a GPU?", torch.cuda.is_available)
    still("on the CPU", lambda: torch.ones(8).sum().item())


def still(what: str, call: Callable[[], object]) -> None:
    try:
        said = f"works: {found}" if isinstance(found := call(), (bool, float)) else "works"
    except Exception as error:  # noqa: BLE001 - whatever it raises is what is shown
        said = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    print(f"{what:<17}{said}")


# --8<-- [end:dead]


# --8<-- [start:memory]
def out_of_memory() -> None:
    """A result of 4 GiB where the process may have 2% of the GPU."""
    torch.cuda.set_per_process_memory_fraction(0.02)
    x = torch.ones(1 << 15, device="cuda")
    try:
        torch.compile(lambda x: x[:, None] * x.cos())(x)
    finally:
        still("afterwards", lambda: x.sum().item())


# --8<-- [end:memory]


# --8<-- [start:too-far]
def too_far(index: int) -> None:
    """Behind a tensor of 8 floats: index 8 is the first that is wrong, and at 128 lies the next tensor."""
    x, other = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")
    stray[(1,)](x, torch.tensor([index], device="cuda"))
    torch.cuda.synchronize()
    print("no error,", "another tensor has changed" if other.any() else "and no other tensor has changed")


# --8<-- [end:too-far]


# --8<-- [start:graphs]
def replayed() -> None:
    """A graph that was recorded with good indices, and replayed with a bad one."""
    rows, index = torch.ones(8, 8, device="cuda"), torch.arange(8, device="cuda")
    embedding(rows, index).sum().item()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = embedding(rows, index)
        later = result + 1
    graph.replay()
    index[3] = 8
    busy()
    graph.replay()
    print(later.sum().item())


def waits_while_recording() -> None:
    x = torch.ones(8, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.sum().item()


# --8<-- [end:graphs]


# ---- each in a process of its own -----------------------------------------------------------------------------------

ON_A_GPU = {bug.__name__: bug for bug in (illegal, unasked, dead, out_of_memory, replayed, waits_while_recording)} | {
    f"index {index}": partial(too_far, index) for index in (8, 128)
}
BUGS: dict[str, Callable[[], None]] = {**ON_A_GPU, "many": partial(lookup, embedding, compiled=True, copies=512)}
for function in LOOKUPS:
    BUGS[function.__name__] = partial(lookup, function, compiled=False)
    BUGS[f"{function.__name__}, compiled"] = partial(lookup, function, compiled=True)


def generated() -> str:
    """The lines of the compiled lookup that read the index, ask, and read the row."""
    from torch._inductor.utils import run_and_get_code

    rows, index = torch.ones(8, 8, device=DEVICE), torch.arange(8, device=DEVICE)
    _, (code, *_) = run_and_get_code(torch.compile(embedding), rows, index)
    lines = [text.strip() for text in code.splitlines()]
    (asks,) = [i for i, text in enumerate(lines) if "index out of bounds" in text]
    first = max(i for i in range(asks) if re.match(r"(auto )?tmp0 = ", lines[i]))
    last = next(i for i in range(asks, len(lines)) if "in_ptr1" in lines[i])
    return "\n".join(lines[first : last + 1])


def at_once() -> None:
    """On a CPU the same lookups fail where they stand, and say what is wrong, unless they are shared out to threads."""
    torch.set_num_threads(1)
    for function in LOOKUPS:
        for compiled in (False, True):
            torch.compiler.reset()
            with torch._inductor.config.patch("cpp.dynamic_threads", False):
                try:
                    lookup(function, compiled)
                except Exception as error:  # noqa: BLE001 - whatever it raises is what is shown
                    name = f"{function.__name__}{', compiled' * compiled}"
                    said = re.sub(r"kernel, \S+, ", "", str(error).splitlines()[0])
                    print(f"{name:<25}{type(error).__name__}: {said}")
    text = run("many", {"OMP_NUM_THREADS": "2"})
    print("4096 rows, two threads")
    print(
        "\n".join(
            re.sub(r"kernel, \S+, ", "", said)
            for said in text.splitlines()
            if re.match("terminate| *what|status", said)
        )
    )


SANITIZER = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
NAMED_LOOKUPS = [f"{function.__name__}{compiled}" for function in LOOKUPS for compiled in ("", ", compiled")]


def main() -> None:
    if DEVICE == "cpu":
        print("==== at once")
        at_once()
        print("==== needs a GPU")
        print(", ".join(ON_A_GPU))
        return
    said = outcomes()
    print_errors(said)
    print_what_follows(said)
    print_out_of_bounds(said)
    print("==== memory")
    print(shown("out_of_memory", said["out_of_memory"]))
    afterwards = (text for text in said["out_of_memory"].splitlines() if text.startswith("afterwards"))
    print("  " + next(afterwards, "no word"))


def outcomes() -> dict[str, str]:
    """What each bug's own process wrote, by the name that `named` gives it."""
    runs = [
        *reversed(FAR),  # they take longest
        *((bug, variables, ()) for bug in (*NAMED_LOOKUPS, "illegal", "replayed") for variables in ({}, BLOCKING)),
        *((bug, {}, ()) for bug in ("unasked", "dead", "out_of_memory", "waits_while_recording")),
        *(("embedding", variables, ()) for variables in (STACKS, BLOCKING | STACKS)),
    ]

    def text_of(asked: tuple[str, dict[str, str], tuple[str, ...]]) -> str:
        bug, variables, options = asked
        tool = [word for option in options for word in option.replace("compute-sanitizer", SANITIZER).split()]
        return run(bug, variables, tuple(tool)) if not tool or Path(SANITIZER).exists() else "no compute-sanitizer"

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        return dict(zip((named(*asked) for asked in runs), pool.map(text_of, runs), strict=True))


def print_errors(said: Mapping[str, str]) -> None:
    """Where an error is raised, and what it says."""
    print("==== late")
    print(both(said, "illegal"))
    print("==== whole message")
    print(re.sub(r"\nstatus .*", "", said["illegal"][said["illegal"].index("CUDA error") :]).strip())
    print("==== asserts")
    for compiled in ("", ", compiled"):
        for variables in ({}, BLOCKING):
            words = {said[named(f"{function.__name__}{compiled}", variables)] for function in LOOKUPS}
            lines = sorted({each for text in words for each in raised(text)})
            print(named(f"each{compiled}", variables), *lines, sep="\n  ")
    for bug in NAMED_LOOKUPS:
        print(bug)
        print(f"  raised at      {line(said[bug])}")
        print(f"  blocking, at   {line(said[named(bug, BLOCKING)])}")
        print(f"  the GPU wrote  {asserted(said[bug])}")
    print("==== generated")
    print(generated())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BUGS[sys.argv[1]]()
    else:
        main()
