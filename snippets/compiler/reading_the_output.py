"""From a line of source to the kernel that runs it, and back: what each log prints, what the debug folder holds, and
which lines of source a kernel computes.

    python -m snippets.compiler.reading_the_output
"""

import contextlib
import logging
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch._inductor.config
import torch._inductor.debug
from torch import Tensor
from torch._logging._internal import log_registry, log_state

from snippets.compiler.reading_the_output_generated import generate
from snippets.compiler.reading_the_output_provenance import compiled_anew, kernels_of_lines, lines_of_kernels
from snippets.compiler.reading_the_output_triton import SHAPES, block

# The logs of one compilation, in the order in which they are written. (graph_breaks and recompiles need a cause.)
LOGS = (
    "graph_code", "guards", "pre_grad_graphs", "aot_joint_graph", "aot_graphs", "post_grad_graphs",
    "ir_pre_fusion", "fusion", "ir_post_fusion", "kernel_code", "output_code", "perf_hints", "autotuning",
)  # fmt: skip
CAUSED = "graph_breaks", "recompiles"
TRITON = ("schedule",)  # written while Triton code is generated
VERDICTS = re.compile("cannot fuse|fusing|found|completed")
CALLS = re.compile(r"^ +((?:cpp_fused_\w+|extern_kernels\.\w+)\(.*\)|# .*(?:Source Nodes).*)$", re.MULTILINE)


# --8<-- [start:logged]
@contextlib.contextmanager
def logged(*names: str) -> Iterator[dict[str, list[str]]]:
    """What TORCH_LOGS=name,… would print, kept by name instead. A name is what TORCH_LOGS calls an artifact."""
    unknown = set(names) - log_registry.artifact_names
    if unknown:
        raise ValueError(f"torch {torch.__version__} has no log called {', '.join(sorted(unknown))}")
    entries: dict[str, list[str]] = {name: [] for name in names}
    handler = logging.Handler()
    handler.emit = lambda record: entries[artifact(record.name)].append(record.getMessage())  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in log_registry.get_artifact_log_qnames() if artifact(name) in entries]
    before = [(logger.level, logger.propagate, logger.handlers) for logger in loggers]
    added = set(names) - log_state.artifact_names
    log_state.artifact_names |= added
    for logger in loggers:
        logger.level, logger.propagate, logger.handlers = logging.DEBUG, False, [handler]
    logging.root.manager._clear_cache()  # type: ignore[attr-defined]  # loggers remember which levels are on
    try:
        yield entries
    finally:
        log_state.artifact_names -= added
        for logger, (level, propagate, handlers) in zip(loggers, before, strict=True):
            logger.level, logger.propagate, logger.handlers = level, propagate, handlers
        logging.root.manager._clear_cache()  # type: ignore[attr-defined]


def artifact(logger: str) -> str:
    """The name that TORCH_LOGS has for a logger such as torch._inductor.scheduler.__fusion."""
    return logger.rpartition(".__")[2]


# --8<-- [end:logged]


def folder_of(call: Callable[[], object]) -> dict[str, list[str]]:
    """What TORCH_COMPILE_DEBUG=1 writes for each graph: the files of its folder, as text lines."""
    with tempfile.TemporaryDirectory() as root:
        options = {"trace.enabled": True, "trace.debug_dir": root, "trace.provenance_tracking_level": 1}
        quiet = logging.getLogger("torch._inductor.debug")
        level, quiet.level = quiet.level, logging.ERROR
        try:
            with torch._inductor.config.patch(options), compiled_anew():
                call()
        finally:
            quiet.level = level
        return {
            path.relative_to(root).as_posix(): path.read_text().splitlines()
            for path in sorted(Path(root).rglob("*"))
            if path.is_file()
        }


def inputs(rows: int = 64) -> list[Tensor]:
    """Small ones: nothing of what is printed depends on the values."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = (rows, 256), (256, 512), (512,), (512, 128)
    return [torch.randn(shape, device=device).requires_grad_() for shape in shapes]


def step() -> None:
    """A forward and a backward of the compiled function."""
    torch.compile(block, dynamic=False)(*inputs()).sum().backward()


def clipped(x: Tensor) -> Tensor:
    if x.sum() > 0:  # Python has to know: a graph ends here
        return x.relu()
    return x


def main() -> None:
    """Print what every log says, the folder, and both maps."""
    with logged(*LOGS) as entries, compiled_anew():
        step()
    with logged(*CAUSED) as caused:
        torch.compiler.reset()
        torch.compile(clipped, backend="eager")(torch.ones(4))
        compiled = torch.compile(block, backend="eager")
        for rows in (64, 48):
            compiled(*inputs(rows))
    with logged(*TRITON) as scheduled:
        generate(block, SHAPES, torch.bfloat16)
    entries |= caused | scheduled
    print("==== logs")
    print(f"{'TORCH_LOGS=':<18} entries  lines  the first line")
    for name in (*CAUSED, *LOGS, *TRITON):
        lines = "\n".join(map(shown, entries[name])).splitlines()
        first = next((line.strip(" =") for line in lines if line.strip(" =")), "(nothing)")
        print(f"{name:<18} {len(entries[name]):7} {len(lines):6}  {first[:62]}")
    for name in (*CAUSED, *LOGS, *TRITON):
        print(f"==== {name}")
        print("\n".join(shown(entry) for entry in entries[name]))
    print("==== decisions")
    print("\n".join(line for entry in entries["fusion"] for line in entry.splitlines() if VERDICTS.match(line)))
    print("==== calls")
    print("\n".join(CALLS.findall("".join(entries["output_code"]))))
    print("==== folder")
    for name, lines in folder_of(step).items():
        numbered = re.sub(r"(?<=[a-z]_)\d+(?:\.\d+)?(?=/)|(?<=model__)\d+", "…", name)  # they count compilations
        print(f"{numbered:<66} {len(lines):4} lines")
    graphs = lines_of_kernels(step)
    print("==== kernels")
    for graph in graphs:
        for kernel, lines in graph.items():
            print(f"{kernel:<42} {' | '.join(line.partition('.py:')[2] for line in lines)}")
    print("==== lines")
    for line, kernels in kernels_of_lines(graphs).items():
        print(line)
        for kernel in kernels:
            print(f"    {kernel}")


def shown(entry: str) -> str:
    """An entry without its traceback, and without what differs between machines and processes."""
    entry = entry.partition("\nUser code traceback")[0]
    entry = re.sub(r"#? ?File: .*?([\w.]+\.py):(\d+) in (\w+), code: ", r"# \1:\2 in \3: ", entry)
    entry = re.sub(r"/\S+/(?=snippets/|torch/)", "", entry)
    entry = re.sub(r"\b\d{12,}\b|(?<=eval_with_key>\.)\d+|(?<=latency = )[\d.]+", "…", entry)  # the first: identities
    return re.sub(r"__compiled_fn_\d+_\w+", "__compiled_fn", entry)


if __name__ == "__main__":
    main()
