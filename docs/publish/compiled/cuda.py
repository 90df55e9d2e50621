"""What the kernels in CUDA C++ become at the points that the viewer shows, beside Triton's, with no GPU."""

import functools
import hashlib
import importlib
import json
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from docs.publish import kept
from docs.publish.compiled.build import Compiled, cores, is_listed
from docs.publish.compiled.compilation import CACHE
from docs.publish.compiled.subjects import Point
from docs.publish.place import CUDA, cuda_files
from docs.publish.records.schema import size
from snippets.validation.compiled_code import as_text, code
from tests.benchmarks import case
from tests.benchmarks.cuda import Launch, launched, machine_code
from tests.benchmarks.launches import published
from tests.benchmarks.source import ROOT

MAKER = "CUDA C++"
TARGETS = ("sm_80", "sm_90", "sm_100")
VERSION = "1"  # of what is kept


@functools.cache
def results(name: str) -> dict[Point, dict[str, list[Compiled]]]:
    """As `build.results`: what kernels/<name>.cu becomes at the listed points of kernels/<name>.py. Empty, if there is
    no such file, or no compiler for it. What is not kept is compiled."""
    if f"{name}{CUDA}" not in cuda_files():
        return {}
    module = importlib.import_module(f"kernels.{name}{CUDA}")
    wanted: list[tuple[Point, str, Launch]] = []
    for point in published(name) if compiler() else ():
        if is_listed(name, point):
            place = point.direction, size(point.part, point.shape), point.dtype
            launches = launched(module, call_of(name, module, point))
            wanted += [(place, target, launch) for target in TARGETS for launch in launches]
    with ThreadPoolExecutor(cores()) as pool:
        made = list(pool.map(lambda one: _compiled(module, one[2], one[1]), wanted))
    found: dict[Point, dict[str, list[Compiled]]] = {}
    for (place, target, _), compiled in zip(wanted, made, strict=True):
        found.setdefault(place, {}).setdefault(target, []).append(compiled)
    return found


def source(name: str) -> Path:
    return cuda_files()[f"{name}{CUDA}"][1]


def lines_of(name: str, function: str) -> tuple[int, int]:
    """The first and the last line of a kernel in its source."""
    lines = source(name).read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"{function}("))
    last = next(number for number, line in enumerate(lines[first:], first) if line == "}")
    return first, last + 1  # from the line before its name: extern "C"


def compiler() -> str:
    """What compiles it: "NVRTC 13.0"; nothing where there is neither NVRTC nor nvcc."""
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):
        return "nvcc" if shutil.which("nvcc") else ""
    return f"NVRTC {major}.{minor}"


def call_of(name: str, module: ModuleType, point: case.Point) -> Callable[[], object]:
    """The timed call at a point, in bf16, of memory that nothing is written to."""
    rows, columns = point.shape["rows"], point.shape["columns"]
    x = torch.empty(rows, columns, dtype=torch.bfloat16)
    if name == "swiglu":
        activation = {"": "silu", "geglu": "gelu", "geglu_tanh": "gelu-tanh"}[point.part]
        if point.direction == "forward":
            return lambda: module._forward(x, x, activation)
        return lambda: module._backward(x, x, x, activation)
    parameter, stats = torch.empty(columns, dtype=torch.bfloat16), torch.empty(2, rows)
    if point.direction == "forward":
        return lambda: module._forward(x, parameter, parameter, 1e-5, False, x.dtype, False)
    return lambda: module._backward(x, x, parameter, parameter, stats, False, True)


def _compiled(module: ModuleType, launch: Launch, target: str) -> Compiled:
    """Kept by source, macros and compiler."""
    parts = VERSION, module._SOURCE.read_text(encoding="utf-8"), launch.name, launch.macros, launch.shared, target
    path = ROOT / CACHE / "cuda" / f"{kept.key(*parts, compiler())}.json"
    found = kept.file(path, lambda: json.dumps(_facts(module, launch, target)))
    constants = dict(macro.split("=") for macro in launch.macros)
    options = {"threads": launch.threads}
    return Compiled(
        function=launch.name, target=target, options=options, signature={}, constants=constants, narrow={}, troubles={},
        fp64=None, **json.loads(found),
    )  # fmt: skip


def _facts(module: ModuleType, launch: Launch, target: str) -> dict[str, Any]:
    began = time.perf_counter()
    module._cubin(target, launch.macros)
    seconds = time.perf_counter() - began
    made = machine_code(module, launch, target)
    return {
        "facts": asdict(made.facts),
        "seconds": seconds,
        "hash": hashlib.sha256(made.cubin).hexdigest()[:16],
        "listings": {"sass": re.sub(r"\n{2,}", "\n", as_text(list(code(made.lines))))},
    }
