"""What programs print and leave under variables, each run in a process of its own."""

import functools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from snippets.reference.environment_variables_programs import (
    broken_backend,
    compile_for_a_gpu,
    double_by_triton,
    two_lengths,
)
from snippets.reference.environment_variables_settings import DYNAMO, FUNCTORCH, INDUCTOR, OPTIONS, SETTINGS

PROGRAMS = two_lengths.__module__


@functools.cache
def told_everything() -> list[str]:
    """The lines of one process under all variables that set options, and two more: the options, and what the two do."""
    tried = dict(each.variable.split("=", 1) for group in SETTINGS.values() for each in group if each.variable)
    sets = {each.variable.split("=")[0] for group in SETTINGS.values() for each in group if each.where in OPTIONS}
    told = {"TORCH_SHOW_CPP_STACKTRACES", "TRITON_INTERPRET", *sets} & tried.keys()
    done = child({name: tried[name] for name in told}, "print_options", "wrong_view", "double_by_triton")
    return done.stdout.strip().splitlines()


# --8<-- [start:process]
def child(variables: Mapping[str, str], *names: str, module: str = PROGRAMS) -> subprocess.CompletedProcess[str]:
    """A process of its own under these variables, and under none that this one was given for the compiler."""
    ours = ("ATEN", "AOT", "CUBLAS", "MLIR", "PYTORCH", "TORCH", "TRITON")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours) or k == "TORCHINDUCTOR_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-m", module, *names],
        env=kept | {"CUDA_VISIBLE_DEVICES": "", "PYTHONUTF8": "1"} | dict(variables),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return checked(done)


# --8<-- [end:process]


def forked(program: Callable[[], None], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A copy of this process, which has imported torch and triton: for variables that are read later than that."""
    assert not {DYNAMO, INDUCTOR, FUNCTORCH} & sys.modules.keys(), "the compiler's variables have been read"
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out, tempfile.TemporaryFile("w+", encoding="utf-8") as error:

        def run() -> None:
            os.dup2(out.fileno(), 1)
            os.dup2(error.fileno(), 2)
            os.environ.update(variables)
            program()

        process = multiprocessing.get_context("fork").Process(target=run)
        process.start()
        process.join()
        out.seek(0)
        error.seek(0)
        return checked(subprocess.CompletedProcess(program.__name__, process.exitcode or 0, out.read(), error.read()))


def checked(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    if done.returncode:
        raise RuntimeError(f"{done.args}: {done.stderr.strip().splitlines()[-1]}")
    return done


def without_prefix(line: str) -> str:
    """A line of the log without date, process and place."""
    return "[" + line.partition("] [")[2] if "] [" in line else line


def files(folder: Path) -> str:
    """The files below a folder, without what each run names anew: date, process, hash."""
    found = sorted({path.relative_to(folder) for path in folder.rglob("*") if path.is_file()})
    return "\n".join("/".join(map(stable, path.parts)) for path in found)


def stable(part: str) -> str:
    if part.startswith("run_"):
        return "run_DATE"
    if part.startswith("dedicated_log_torch_trace_"):
        return "dedicated_log_torch_trace_NAME.log"
    return "HASH" if len(part) >= 40 and part.isalnum() else part


def logs(folder: Path) -> Iterator[tuple[str, str]]:
    out, trace = folder / "log", folder / "trace"
    done = child({"TORCH_LOGS": "recompiles", "TORCH_LOGS_OUT": str(out), "TORCH_TRACE": str(trace)}, "two_lengths")
    lines_of_log = "\n".join(map(without_prefix, done.stderr.splitlines()))
    yield "TORCH_LOGS", lines_of_log.replace(f"{Path(__file__).parent}/", "")
    lines = len(out.read_text().splitlines())
    yield "TORCH_LOGS_OUT", f"{lines} lines in the file, {len(done.stderr.splitlines())} on the error output"
    kinds = {kind for line in next(trace.glob("*.log")).read_text().splitlines() for kind in record(line)}
    yield "TORCH_TRACE", f"{files(trace)}: {', '.join(sorted(kinds))}"


def record(line: str) -> set[str]:
    """What kind of record a line of a trace is, where it is about a graph or a guard."""
    _, brace, rest = line.partition(" {")
    if not brace:
        return set()
    try:
        keys = set(json.loads("{" + rest))
    except ValueError:  # a line of what a record carries
        return set()
    return {key for key in keys if "graph" in key or "guard" in key}


def debug(folder: Path) -> Iterator[tuple[str, str]]:
    anew = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}  # a cached graph leaves no files
    anew["TORCHINDUCTOR_VEC_ISA_OK"] = "0"  # no vector instructions, and so no trials of them
    child(anew | {"TORCH_COMPILE_DEBUG": "1", "TORCH_COMPILE_DEBUG_DIR": str(folder)}, "one_kernel")
    yield "TORCH_COMPILE_DEBUG", files(folder)


def repro(folder: Path) -> Iterator[tuple[str, str]]:
    verbose = forked(broken_backend, {"TORCHDYNAMO_VERBOSE": "1"})
    usual = forked(broken_backend, {"TORCHDYNAMO_REPRO_AFTER": "dynamo", "TORCH_COMPILE_DEBUG_DIR": str(folder)})
    yield "TORCHDYNAMO_VERBOSE", f"0: {usual.stdout.strip()}\n1: {verbose.stdout.strip()}"
    yield "TORCHDYNAMO_REPRO_AFTER", files(folder)


def triton_and_cpp(folder: Path) -> Iterator[tuple[str, str]]:
    _, *shown, doubled = told_everything()
    frames = "calls of C++ follow" if len(shown) > 3 else "nothing follows"
    yield "TORCH_SHOW_CPP_STACKTRACES", "\n".join([*(line.partition(" at /")[0] for line in shown[:2]), frames])
    usual = forked(double_by_triton, {}).stdout.strip()
    yield "TRITON_INTERPRET", f"TRITON_INTERPRET=0: {usual}\nTRITON_INTERPRET=1: {doubled}"
    cache, dump = folder / "cache", folder / "dump"
    where = {"TRITON_CACHE_DIR": str(cache), "TRITON_DUMP_DIR": str(dump)}
    first = forked(compile_for_a_gpu, where)
    yield "TRITON_CACHE_DIR", files(cache)
    more = {"TRITON_ALWAYS_COMPILE": "1", "TRITON_KERNEL_DUMP": "1", "MLIR_ENABLE_DUMP": "1"}
    done = forked(compile_for_a_gpu, where | more)
    yield "TRITON_ALWAYS_COMPILE", f"0: {first.stdout.strip()}\n1: {done.stdout.strip()}"
    yield "TRITON_KERNEL_DUMP", files(dump)
    passes = [line for line in done.stderr.splitlines() if "IR Dump Before" in line]
    yield "MLIR_ENABLE_DUMP", "\n".join([*passes[:2], "...", passes[-1]])
