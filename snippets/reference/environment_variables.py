"""What the variables and options of the compiler stack do: defaults in the installed torch, and runs that show it."""

import functools
import json
import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

THIS = Path(__file__)


# --8<-- [start:settings]
class Setting(NamedTuple):
    """A variable, an option, or a variable that sets an option."""

    variable: str  # with a value to try: "TORCH_LOGS=recompiles"
    where: str  # the option that it sets, or the file of an installed package that reads it


DYNAMO, INDUCTOR, FUNCTORCH = "torch._dynamo.config", "torch._inductor.config", "torch._functorch.config"
LOGGING, KNOBS = "torch/_logging/_internal.py", "triton/knobs.py"
SETTINGS = {
    "see": (
        Setting("TORCH_LOGS=recompiles", LOGGING),
        Setting("TORCH_LOGS_OUT=/tmp/log", LOGGING),
        Setting("TORCH_TRACE=/tmp/trace", LOGGING),
        Setting("TORCH_COMPILE_DEBUG=1", f"{INDUCTOR}.trace.enabled"),
        Setting("TORCH_COMPILE_DEBUG_DIR=/tmp/debug", f"{DYNAMO}.debug_dir_root"),
        Setting("", f"{INDUCTOR}.trace.debug_dir"),
        Setting("INDUCTOR_PROVENANCE=1", f"{INDUCTOR}.trace.provenance_tracking_level"),
    ),
    "control": (
        Setting("TORCH_COMPILE_DISABLE=1", f"{DYNAMO}.disable"),
        Setting("", f"{DYNAMO}.recompile_limit"),
        Setting("", f"{DYNAMO}.accumulated_recompile_limit"),
        Setting("", f"{DYNAMO}.fail_on_recompile_limit_hit"),
        Setting("", f"{DYNAMO}.capture_scalar_outputs"),
        Setting("", f"{DYNAMO}.trace_autograd_ops"),
        Setting("TORCHDYNAMO_CAPTURE_DYNAMIC_OUTPUT_SHAPE_OPS=1", f"{DYNAMO}.capture_dynamic_output_shape_ops"),
        Setting("", f"{DYNAMO}.ignore_logging_functions"),
        Setting("", f"{DYNAMO}.reorderable_logging_functions"),
        Setting("", f"{DYNAMO}.skip_nnmodule_hook_guards"),
        Setting("", f"{DYNAMO}.allow_rnn"),
        Setting("", f"{DYNAMO}.compiled_autograd"),
        Setting("", f"{FUNCTORCH}.backward_pass_autocast"),
        Setting("", f"{FUNCTORCH}.force_non_lazy_backward_lowering"),
        Setting("", f"{FUNCTORCH}.guess_tangent_strides_as_outputs"),
    ),
    "kernels": (
        Setting("TORCHINDUCTOR_MAX_AUTOTUNE=1", f"{INDUCTOR}.max_autotune"),
        Setting("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM=1", f"{INDUCTOR}.max_autotune_gemm"),
        Setting("TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE=1", f"{INDUCTOR}.max_autotune_pointwise"),
        Setting("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS=ATEN", f"{INDUCTOR}.max_autotune_gemm_backends"),
        Setting("TORCHINDUCTOR_COORDINATE_DESCENT_TUNING=1", f"{INDUCTOR}.coordinate_descent_tuning"),
        Setting("TORCHINDUCTOR_SHAPE_PADDING=0", f"{INDUCTOR}.shape_padding"),
        Setting("", f"{INDUCTOR}.combo_kernels"),
        Setting("TORCHINDUCTOR_CPP_WRAPPER=1", f"{INDUCTOR}.cpp_wrapper"),
        Setting("TORCHINDUCTOR_CUDAGRAPHS=1", f"{INDUCTOR}.triton.cudagraphs"),
        Setting("TORCHINDUCTOR_CUDAGRAPH_OR_ERROR=1", f"{INDUCTOR}.triton.cudagraph_or_error"),
        Setting("", f"{INDUCTOR}.epilogue_fusion"),
        Setting("TORCHINDUCTOR_FREEZING=1", f"{INDUCTOR}.freezing"),
        Setting("", f"{INDUCTOR}.epilogue_fusion_user_defined_triton_kernel"),
        Setting("", f"{INDUCTOR}.epilogue_fusion_with_atomic_add"),
        Setting("", f"{INDUCTOR}.max_fusion_size"),
        Setting("", f"{INDUCTOR}.realize_opcount_threshold"),
        Setting("", f"{INDUCTOR}.post_grad_custom_pre_pass"),
        Setting("", f"{INDUCTOR}.post_grad_custom_post_pass"),
        Setting("", f"{INDUCTOR}.fallback_random"),
        Setting("TORCHINDUCTOR_EMULATE_PRECISION_CASTS=1", f"{INDUCTOR}.emulate_precision_casts"),
        Setting("TORCHINDUCTOR_DETERMINISTIC=1", f"{INDUCTOR}.deterministic"),
        Setting("TORCH_CUDNN_SDPA_DEPRIORITIZED=1", "torch/lib/libtorch_cuda.so"),
    ),
    "caches": (
        Setting("TORCHINDUCTOR_CACHE_DIR=/tmp/cache", "torch/_inductor/runtime/cache_dir_utils.py"),
        Setting("TRITON_CACHE_DIR=/tmp/cache/triton", KNOBS),
        Setting("TORCHINDUCTOR_FX_GRAPH_CACHE=0", f"{INDUCTOR}.fx_graph_cache"),
        Setting("TORCHINDUCTOR_AUTOGRAD_CACHE=0", f"{FUNCTORCH}.enable_autograd_cache"),
        Setting("TORCHINDUCTOR_FORCE_DISABLE_CACHES=1", "torch.compiler.config.force_disable_caches"),
        Setting("TORCH_COMPILE_CACHE_KEY_TAG=mine", "torch.compiler.config.cache_key_tag"),
        Setting("TORCH_CACHING_PRECOMPILE=1", f"{DYNAMO}.caching_precompile"),
        Setting("TORCHINDUCTOR_COMPILE_THREADS=1", f"{INDUCTOR}.compile_threads"),
        Setting("", f"{INDUCTOR}.quiesce_async_compile_time"),
        Setting("TORCHINDUCTOR_VEC_ISA_OK=1", f"{INDUCTOR}.cpp.vec_isa_ok"),
    ),
    "memory": (
        Setting("PYTORCH_ALLOC_CONF=expandable_segments:True", "torch/lib/libc10.so"),
        Setting("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "torch/lib/libc10.so"),
        Setting("PYTORCH_NO_CUDA_MEMORY_CACHING=1", "torch/lib/libc10_cuda.so"),
        Setting("", f"{FUNCTORCH}.activation_memory_budget"),
        Setting("", f"{INDUCTOR}.aot_inductor.package_constants_in_so"),
        Setting("", f"{INDUCTOR}.aot_inductor.package_constants_on_disk_format"),
        Setting("", f"{INDUCTOR}.always_keep_tensor_constants"),
    ),
    "errors": (
        Setting("CUDA_LAUNCH_BLOCKING=1", "torch/lib/libc10_cuda.so"),
        Setting("TORCH_SHOW_CPP_STACKTRACES=1", "torch/lib/libtorch_cpu.so"),
        Setting("TORCHDYNAMO_VERBOSE=1", f"{DYNAMO}.verbose"),
        Setting("TORCHDYNAMO_SUPPRESS_ERRORS=1", f"{DYNAMO}.suppress_errors"),
        Setting("TORCHDYNAMO_REPRO_AFTER=dynamo", f"{DYNAMO}.repro_after"),
        Setting("TORCHDYNAMO_REPRO_LEVEL=4", f"{DYNAMO}.repro_level"),
        Setting("TORCHINDUCTOR_NAN_ASSERTS=1", f"{INDUCTOR}.nan_asserts"),
        Setting("", f"{INDUCTOR}.assert_indirect_indexing"),
        Setting("CUBLAS_WORKSPACE_CONFIG=:4096:8", "torch/lib/libtorch_cuda.so"),
        Setting("CUDA_VISIBLE_DEVICES=0", "torch/cuda/__init__.py"),
        Setting("", f"{INDUCTOR}.cpp.cxx"),
        Setting("", f"{INDUCTOR}.cpp_cache_precompile_headers"),
    ),
    "triton": (
        Setting("TRITON_INTERPRET=1", KNOBS),
        Setting("TRITON_PRINT_AUTOTUNING=1", KNOBS),
        Setting("TRITON_KERNEL_DUMP=1", KNOBS),
        Setting("TRITON_DUMP_DIR=/tmp/dump", KNOBS),
        Setting("TRITON_ALWAYS_COMPILE=1", KNOBS),
        Setting("MLIR_ENABLE_DUMP=1", "triton/_C/libtriton.so"),
    ),
}
# --8<-- [end:settings]


# ---- defaults -------------------------------------------------------------------------------------------------------


def option(path: str) -> object:
    """An option's value in this process, or why there is none."""
    module, rest = next((name, path[len(name) + 1 :]) for name in MODULES if path.startswith(name + "."))
    found: object = sys.modules[module]
    for name in rest.split("."):
        found = getattr(found, name, "not in this version")
    return found


MODULES = (DYNAMO, INDUCTOR, FUNCTORCH, "torch.compiler.config")
OPTIONS = [each.where for group in SETTINGS.values() for each in group if each.where.startswith(MODULES)]


def import_options() -> None:
    """So that `option` finds the modules."""
    import torch._dynamo.config
    import torch._functorch.config
    import torch._inductor.config
    import torch.compiler.config  # noqa: F401


def options() -> dict[str, str]:
    """Every option's value under this process's variables."""
    import_options()
    usual = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    values = {path: repr(option(path)).strip("'") for path in OPTIONS}
    threads = f"{INDUCTOR}.compile_threads"
    if values[threads] == str(min(32, usual or 1)) and "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        values[threads] = "cores, 32 at most"  # not this machine's number
    return values


def print_options() -> None:
    """For the process that asks."""
    print(json.dumps(options()))


# --8<-- [start:precedence]
def print_precedence() -> None:
    """For the process that asks: who wins, a variable or a line of code, under the two variables named here."""
    import torch._inductor.config as config

    config.max_autotune = False
    print(f"TORCHINDUCTOR_MAX_AUTOTUNE=1, then config.max_autotune = False in the code: {config.max_autotune}")
    config.fx_graph_cache = True
    print(f"TORCHINDUCTOR_FX_GRAPH_CACHE=0, then config.fx_graph_cache = True in the code: {config.fx_graph_cache}")
    os.environ["TORCHINDUCTOR_COORDINATE_DESCENT_TUNING"] = "1"
    print(f"os.environ changed after the import, config.coordinate_descent_tuning: {config.coordinate_descent_tuning}")


# --8<-- [end:precedence]


def precedence(folder: Path) -> Iterator[tuple[str, str]]:
    given = {"TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCHINDUCTOR_FX_GRAPH_CACHE": "0"}
    yield "precedence", forked("precedence", given).stdout.strip()


def tables() -> Iterator[tuple[str, str]]:
    """Each group's settings, with the values that the installed version has without a variable and with it."""
    changed, usual = json.loads(told_everything()[0]), options()
    for name, group in SETTINGS.items():
        lines = []
        for variable, where in group:
            if where not in OPTIONS:
                lines.append(f"{variable}\n    read by {where}")
                continue
            lines += [variable] if variable else []
            lines.append(f"{'    sets ' * bool(variable)}{where}")
            value = usual[where] or "empty"
            lines.append(f"    {value} -> {changed[where]}" if variable else f"    {value}")
        yield name, "\n".join(lines)


@functools.cache
def told_everything() -> list[str]:
    """The lines of one process under all variables that set options, and two more: the options, and what the two do."""
    tried = dict(each.variable.split("=", 1) for group in SETTINGS.values() for each in group if each.variable)
    sets = {each.variable.split("=")[0] for group in SETTINGS.values() for each in group if each.where in OPTIONS}
    told = {"TORCH_SHOW_CPP_STACKTRACES", "TRITON_INTERPRET", *sets} & tried.keys()
    return child("options, wrong view, double", {name: tried[name] for name in told}).stdout.strip().splitlines()


def child(what: str, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A process of its own under these variables, and under none that this one was given for the compiler."""
    ours = ("ATEN", "AOT", "CUBLAS", "MLIR", "PYTORCH", "TORCH", "TRITON")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours) or k == "TORCHINDUCTOR_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, str(THIS), what],
        env=kept | {"CUDA_VISIBLE_DEVICES": "", "PYTHONUTF8": "1"} | dict(variables),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return checked(done)


def forked(what: str, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A copy of this process, which has imported torch and triton: for variables that are read later than that."""
    assert not {DYNAMO, INDUCTOR, FUNCTORCH} & sys.modules.keys(), "the compiler's variables have been read"
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out, tempfile.TemporaryFile("w+", encoding="utf-8") as error:

        def run() -> None:
            os.dup2(out.fileno(), 1)
            os.dup2(error.fileno(), 2)
            os.environ.update(variables)
            PROGRAMS[what]()

        process = multiprocessing.get_context("fork").Process(target=run)
        process.start()
        process.join()
        out.seek(0)
        error.seek(0)
        return checked(subprocess.CompletedProcess(what, process.exitcode or 0, out.read(), error.read()))


def checked(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    if done.returncode:
        raise RuntimeError(f"{done.args}: {done.stderr.strip().splitlines()[-1]}")
    return done


# ---- what is run ----------------------------------------------------------------------------------------------------


# --8<-- [start:programs]
def waves(x: Tensor) -> Tensor:
    return x.sin() + 1


def two_lengths() -> None:
    """Compiled twice: a line in the log."""
    compiled = torch.compile(waves, backend="eager", dynamic=False)
    for length in (2, 3):
        compiled(torch.ones(length))


def one_kernel() -> None:
    torch.compile(waves)(torch.ones(32))


def wrong_view() -> None:
    """An error of an operator in C++."""
    try:
        torch.ones(2).view(3)
    except RuntimeError as error:
        print(error)


def broken_backend() -> None:
    def broken(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
        raise NotImplementedError("this backend cannot")

    try:
        torch.compile(waves, backend=broken)(torch.ones(32))
    except torch._dynamo.exc.BackendCompilerFailed as error:
        print(f"{len(traceback.extract_tb(error.__traceback__))} frames of Python in the error's traceback")


# --8<-- [end:programs]


@triton.jit
def double(x, y, count, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + at, 2 * tl.load(x + at, at < count), at < count)


def double_by_triton() -> None:
    """A Triton kernel on the CPU: an error, or the result."""
    x = torch.ones(4)
    y = torch.zeros(4)
    try:
        double[(1,)](x, y, 4, SIZE=8)
        print(y)
    except RuntimeError as error:
        print(f"{type(error).__name__}: {str(error).splitlines()[0]}")


def compile_for_a_gpu() -> None:
    """One Triton kernel compiled twice for an H200, which need not be there."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    written = []
    for _ in range(2):
        source = ASTSource(double, {"x": "*fp32", "y": "*fp32", "count": "i32"}, {"SIZE": 128})
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
        binaries = Path(os.environ["TRITON_CACHE_DIR"]).rglob("double.cubin")
        written.append(max(path.stat().st_mtime_ns for path in binaries))
    print(f"the second compilation {'wrote the binary again' if len(set(written)) == 2 else 'found the first one'}")


# ---- effects of variables -------------------------------------------------------------------------------------------


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
    done = child("two lengths", {"TORCH_LOGS": "recompiles", "TORCH_LOGS_OUT": str(out), "TORCH_TRACE": str(trace)})
    yield "TORCH_LOGS", "\n".join(map(without_prefix, done.stderr.splitlines())).replace(str(THIS), THIS.name)
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
    child("one kernel", anew | {"TORCH_COMPILE_DEBUG": "1", "TORCH_COMPILE_DEBUG_DIR": str(folder)})
    yield "TORCH_COMPILE_DEBUG", files(folder)


def repro(folder: Path) -> Iterator[tuple[str, str]]:
    verbose = forked("broken backend", {"TORCHDYNAMO_VERBOSE": "1"})
    usual = forked("broken backend", {"TORCHDYNAMO_REPRO_AFTER": "dynamo", "TORCH_COMPILE_DEBUG_DIR": str(folder)})
    yield "TORCHDYNAMO_VERBOSE", f"0: {usual.stdout.strip()}\n1: {verbose.stdout.strip()}"
    yield "TORCHDYNAMO_REPRO_AFTER", files(folder)


def triton_and_cpp(folder: Path) -> Iterator[tuple[str, str]]:
    _, *shown, doubled = told_everything()
    frames = "calls of C++ follow" if len(shown) > 3 else "nothing follows"
    yield "TORCH_SHOW_CPP_STACKTRACES", "\n".join([*(line.partition(" at /")[0] for line in shown[:2]), frames])
    usual = forked("double", {}).stdout.strip()
    yield "TRITON_INTERPRET", f"TRITON_INTERPRET=0: {usual}\nTRITON_INTERPRET=1: {doubled}"
    cache, dump = folder / "cache", folder / "dump"
    where = {"TRITON_CACHE_DIR": str(cache), "TRITON_DUMP_DIR": str(dump)}
    first = forked("for a GPU", where)
    yield "TRITON_CACHE_DIR", files(cache)
    more = {"TRITON_ALWAYS_COMPILE": "1", "TRITON_KERNEL_DUMP": "1", "MLIR_ENABLE_DUMP": "1"}
    done = forked("for a GPU", where | more)
    yield "TRITON_ALWAYS_COMPILE", f"0: {first.stdout.strip()}\n1: {done.stdout.strip()}"
    yield "TRITON_KERNEL_DUMP", files(dump)
    passes = [line for line in done.stderr.splitlines() if "IR Dump Before" in line]
    yield "MLIR_ENABLE_DUMP", "\n".join([*passes[:2], "...", passes[-1]])


# ---- effects of options ---------------------------------------------------------------------------------------------


# --8<-- [start:effects]
def compare(path: str, tried: object, effect: Callable[[], str]) -> tuple[str, str]:
    """What a program says under an option's default and under another value, compiled anew for each."""
    module, _, name = path.rpartition(".")
    lines = []
    for value in (option(path), tried):
        torch.compiler.reset()
        with sys.modules[module].patch({name: value}):
            lines.append(f"{name} = {value}: {effect()}")
    return name, "\n".join(lines)


def graphs(function: Callable, *inputs: Tensor) -> str:
    """How many graphs a call hands to the backend."""
    seen = []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable:
        seen.append(graph)
        return graph

    torch.compile(function, backend=keep)(*inputs)
    return f"{len(seen)} graph{'s' * (len(seen) != 1)} compiled"


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x.sin())[0].cos()


def forward_only() -> str:
    """How many graphs there are when backward has not been called yet."""
    from torch._dynamo.backends.common import aot_autograd

    seen = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
        seen.append(graph)
        return graph

    compiled = torch.compile(lambda x: (x.sin() * x).sum(), backend=aot_autograd(fw_compiler=keep, bw_compiler=keep))
    compiled(torch.ones(4, requires_grad=True))
    return f"{len(seen)} compiled after forward"


def failing() -> str:
    def broken(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
        raise NotImplementedError("this backend cannot")

    try:
        torch.compile(waves, backend=broken)(torch.ones(4))
    except torch._dynamo.exc.BackendCompilerFailed as error:
        return type(error).__name__
    return "no error, and the function runs eagerly"


def dropout() -> str:
    x = torch.ones(64)
    results = []
    for function in (nn.functional.dropout, torch.compile(nn.functional.dropout)):
        torch.manual_seed(0)
        results.append(function(x))
    return "eager's numbers" if torch.equal(*results) else "other numbers than eager, from the same seed"


def rounded() -> str:
    def scaled(x: Tensor) -> Tensor:
        return x * 1.1 * 1.3 + x

    x = torch.linspace(-1, 1, 4096).bfloat16()
    same = torch.equal(torch.compile(scaled)(x), scaled(x))
    return "bit for bit eager's" if same else "differs from eager in the last bits"


def not_a_number() -> str:
    try:
        torch.compile(lambda x: (x - 2).sqrt() + 1)(torch.ones(32))
    except AssertionError:
        return "AssertionError"
    return "no error"


def second_time() -> str:
    """Which cache answers when a function is compiled once more."""
    from torch._dynamo.utils import counters

    for _ in range(2):
        torch.compiler.reset()
        counters.clear()
        one_kernel()
    hits = {"autograd": counters["aot_autograd"]["autograd_cache_hit"], "fx": counters["inductor"]["fxgraph_cache_hit"]}
    return ", ".join(f"{name} cache hit" for name, count in hits.items() if count) or "no hit"


# --8<-- [end:effects]


def effects() -> Iterator[tuple[str, str]]:
    """The effects of options, in a process that nobody has told anything about the compiler."""
    x = torch.ones(4)
    yield compare(f"{DYNAMO}.disable", True, lambda: graphs(waves, x))
    yield compare(f"{DYNAMO}.allow_rnn", True, lambda: graphs(Recurrent(), torch.ones(3, 2, 4)))
    yield compare(f"{FUNCTORCH}.force_non_lazy_backward_lowering", True, forward_only)
    yield compare(f"{DYNAMO}.suppress_errors", True, failing)
    yield compare(f"{INDUCTOR}.fallback_random", True, dropout)
    yield compare(f"{INDUCTOR}.emulate_precision_casts", True, rounded)
    yield compare(f"{INDUCTOR}.nan_asserts", True, not_a_number)
    yield compare(f"{FUNCTORCH}.enable_autograd_cache", False, second_time)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        yield compare(f"{INDUCTOR}.fx_graph_cache", False, second_time)
    yield compare("torch.compiler.config.force_disable_caches", True, second_time)


def everything() -> None:
    """For a process that nobody has told anything about the compiler."""
    printed: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for effect in (precedence, logs, debug, repro, triton_and_cpp):
            (own := Path(folder, effect.__name__)).mkdir()
            printed += effect(own)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    printed += tables()
    with torch._inductor.config.patch({"cpp.vec_isa_ok": False}):  # no vector instructions, and so no trials of them
        printed += effects()
    for name, text in printed:
        print(f"==== {name}")
        print(text.replace(folder, "/tmp"))


PROGRAMS = {
    "everything": everything,
    "options": print_options,
    "precedence": print_precedence,
    "two lengths": two_lengths,
    "one kernel": one_kernel,
    "wrong view": wrong_view,
    "broken backend": broken_backend,
    "double": double_by_triton,
    "for a GPU": compile_for_a_gpu,
}


def main() -> None:
    """Print every group's defaults, and every effect that takes seconds on a CPU."""
    print(child("everything", {}).stdout, end="")


if __name__ == "__main__":
    if sys.argv[1:]:
        for name in sys.argv[1].split(", "):
            PROGRAMS[name]()
    else:
        main()
