"""Compiles what published points launch, in parallel, looks at it with the tool that readers have, and keeps it all.

A compilation is kept by source, configuration and compiler version: what has not changed costs nothing later.
"""

import functools
import gc
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from filelock import FileLock
from triton.runtime.cache import triton_key

from docs.publish import kept
from docs.publish.compiled import inductor
from docs.publish.compiled.compilation import CACHE, TIMED, TOOL, Compilation, Pair, compiled, of_launch
from docs.publish.errors import PublishError
from docs.publish.markdown import pages
from docs.publish.records.captures import Captures
from docs.publish.records.schema import size
from snippets.validation.compiled_code import TARGETS
from tests.benchmarks.case import Point
from tests.benchmarks.launches import launched, published
from tests.benchmarks.source import ROOT

LISTED = ["32768x4096", "8192x16384"]  # shapes; where a page speaks of others, its front matter has them as `listed`
OPTIONS = ("num_warps", "num_stages", "maxnreg", "enable_fp_fusion")  # what the launch tables choose
SOURCES = (
    TOOL, *(f"docs/publish/compiled/{name}.py" for name in ("compilation", "build")),
    *(f"tests/benchmarks/{name}.py" for name in ("launches", "stand_ins", "case", "sides", "blocks", "disassembly")),
)  # fmt: skip


# ---- all of a kernel file -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compiled:
    """A kernel as it is launched at a published point, and what it became.

    Attributes:
        signature: what is known of each argument, as `snippets.validation.compiled_code` takes it: "*bf16:16".
        narrow: by line of the source, the bits of accesses to global memory that are less than 128.
        troubles: of the tool, by kind and line, where registers are spilled, there is fp64, or there are listings.
        listings: empty but for the points that a page shows first.
        fp64: there too, facts and troubles of the same with its floats as fp64, on the GPU that is timed; None if it
            takes no floats.
    """

    function: str
    target: str
    options: dict[str, Any]
    signature: dict[str, str]
    constants: dict[str, Any]
    facts: dict[str, Any]
    seconds: float
    hash: str
    narrow: dict[str, list[int]]
    troubles: dict[str, dict[str, int]]
    listings: dict[str, str]
    fp64: dict[str, Any] | None


INDUCTOR = "inductor"  # what captures hold, beside the names of kernel files
Plan = list[tuple[Point, str, list[Pair]]]  # (point, target, what is launched there)


def plan_of(name: str) -> Plan:
    """What is published of kernels/<name>.py, or what Inductor generated.

    All points are compiled for the GPU on which they are timed. For the others, whose launches nobody has swept, those
    with listings are, and the widest rows, which need the most registers.
    """
    if name == INDUCTOR:
        return list(inductor.wanted(inductor.captured(Captures.load())))
    points = published(name)
    widest = max(point.shape.get("columns", 0) for point in points)
    some = [point for point in points if is_listed(name, point) or point.shape.get("columns") == widest]
    targets = targets_of(name)
    plan = []
    for point, target, launches in launched(name, ((each, targets if each in some else [TIMED]) for each in points)):
        shown = is_listed(name, point)
        plan.append((point, target, [of_launch(name, launch, target, shown) for launch in launches]))
    return plan


def targets_of(name: str) -> list[str]:
    """The targets that kernels/<name>.py is for: some numbers, as those of fp8, not every GPU has."""
    least = getattr(importlib.import_module(f"kernels.{name}"), "_LEAST", None)
    if least is None:
        return list(TARGETS)
    number = 10 * least[0] + least[1]
    return [name for name, target in TARGETS.items() if target.backend == "cuda" and int(target.arch) >= number]


def is_listed(name: str, point: Point) -> bool:
    """Whether listings are kept of it: listings of every point would be more than a viewer can load."""
    return size(point.part, point.shape) in listed(name)


def listed(name: str, root: Path = ROOT) -> list[str]:
    """The shapes whose listings are kept: those that the kernel's page speaks of."""
    page = root / "docs" / "pages" / "kernels" / f"{name.replace('_', '-')}.md"
    return pages.front_matter(page.read_text(encoding="utf-8")).get("listed", LISTED) if page.is_file() else LISTED


def digest(name: str, root: Path = ROOT) -> str:
    """What the result depends on."""
    of_a_kernel = [f"kernels/{name}.py", f"tests/benchmarks/kernels/{name}.py"]
    own = ["docs/publish/compiled/inductor.py"] if name == INDUCTOR else of_a_kernel
    parts = [(root / file).read_bytes() for file in (*own, *SOURCES)]
    graphs = inductor.digest(inductor.captured(Captures.load())) if name == INDUCTOR else ""
    return kept.key(parts, torch.__version__, triton.__version__, listed(name, root), graphs)


def is_fresh(name: str) -> bool:
    """Whether what is kept is what a compilation would give now."""
    try:
        return _read(_manifest(name))["digest"] == digest(name)
    except (OSError, ValueError, KeyError):
        return False


def results(name: str) -> dict[tuple[str, str, str], dict[str, list[Compiled]]]:
    """By (direction, size, dtype) of a published point and by target, in the order of launches, each binary once.

    Compiles first what is not kept, in a process of its own: Triton compiles nothing where it interprets.

    Raises:
        PublishError: a kernel does not compile.
    """
    ensure([name])
    return _results(name, digest(name))


@functools.cache
def _results(name: str, digest: str) -> dict[tuple[str, str, str], dict[str, list[Compiled]]]:
    found: dict[tuple[str, str, str], dict[str, list[Compiled]]] = {}
    for point in _read(_manifest(name))["points"]:
        place = point["direction"], point["size"], point["dtype"]
        kernels = found.setdefault(place, {})[point["target"]] = []
        for launch, key, key64 in zip(point["launches"], point["keys"], point["keys64"], strict=True):
            entry = _read(_entry(key)) | ({} if point["listed"] else {"listings": {}})
            if entry["hash"] in {other.hash for other in kernels}:
                continue
            as_fp64 = _read(_entry(key64)) if key64 else None
            fp64 = as_fp64 and as_fp64["facts"] | {"troubles": as_fp64["troubles"]}
            kernels.append(Compiled(**launch, **entry, fp64=fp64))
    return found


def ensure(names: Iterable[str]) -> None:
    """Compile what is not kept.

    Raises:
        PublishError: a kernel does not compile.
    """
    stale = [name for name in names if not is_fresh(name)]
    if not stale:
        return
    command = [sys.executable, "-m", "docs.publish.compiled", *stale]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise PublishError(" ".join(done.stderr.split()) or "compiling failed")


def build(names: Iterable[str], report: Callable[[str], None]) -> None:
    """Compile the published kernels of these names, as many at a time as there are cores.

    Raises:
        compiled_code.Refused: Triton does not compile one.
    """
    with FileLock(ROOT / CACHE / "lock"):  # tests and a build of the site may want the same at once
        names = [name for name in names if not is_fresh(name)]
        plans: dict[str, Plan] = {}
        with ProcessPoolExecutor(cores(), multiprocessing.get_context(start()), _warm_up) as pool:
            try:
                tasks: dict[Future[None], list[Compilation]] = {}
                for name in names:  # the first compile while the others are planned
                    plans[name] = plan_of(name)
                    tasks |= {pool.submit(_compile_and_keep, group): group for group in _groups(plans[name])}
                done, every = 0, sum(map(len, tasks.values()))
                for task in as_completed(tasks):
                    task.result()
                    done += len(tasks[task])
                    report(f"{done}/{every} {tasks[task][0].place} for {tasks[task][0].target}")
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        for name, plan in plans.items():
            points = [_described(*described) for described in plan]
            kept.write(_manifest(name), json.dumps({"digest": digest(name), "points": points}))
        _prune()


def _groups(plan: Plan) -> Iterable[list[Compilation]]:
    """What is not kept, by target."""
    every = [compilation for _, _, pairs in plan for pair in pairs for compilation in pair if compilation]
    every.sort(key=lambda compilation: compilation.listed)  # of the same at several points a listed one is kept
    groups: dict[str, list[Compilation]] = {}
    for compilation in {compilation.key: compilation for compilation in every}.values():
        if not _is_kept(compilation):
            groups.setdefault(compilation.target, []).append(compilation)
    return groups.values()


def cores() -> int:
    """Those that this process may use: a worker more would only take its start."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start() -> str:
    """How workers begin: forked, so that none imports torch and Triton again, where that is safe."""
    return "fork" if sys.platform == "linux" and threading.active_count() == 1 else "spawn"


def _warm_up() -> None:
    triton.knobs.compilation.always_compile = True  # or the time would be that of reading a file
    triton_key()  # reads all of Triton once
    gc.disable()  # some percent of the time, and a worker does not live long


def _compile_and_keep(compilations: list[Compilation]) -> None:
    for compilation, result in zip(compilations, compiled(compilations), strict=True):
        kept.write(_entry(compilation.key), json.dumps(result))


def _described(point: Point, target: str, pairs: list[Pair]) -> dict[str, Any]:
    return {
        "direction": point.direction,
        "size": size(point.part, point.shape),
        "dtype": point.dtype,
        "target": target,
        "listed": any(usual.listed for usual, _ in pairs),
        "keys": [usual.key for usual, _ in pairs],
        "keys64": [as_fp64.key if as_fp64 else None for _, as_fp64 in pairs],
        "launches": [
            {
                "function": usual.function,
                "target": target,
                "options": {name: usual.options[name] for name in OPTIONS if name in usual.options},
                "signature": _signature(usual),
                "constants": _constants(usual),
            }
            for usual, _ in pairs
        ],
    }


def _signature(compilation: Compilation) -> dict[str, str]:
    names, constants = list(compilation.signature), _constants(compilation)
    divisible = {names[index] for (index, *_), hints in compilation.attributes.items() if hints}
    return {
        name: repr(constants[name]) if kind == "constexpr" else kind + ":16" * (name in divisible)
        for name, kind in compilation.signature.items()
    }


def _constants(compilation: Compilation) -> dict[str, Any]:
    """The constexprs by name, as JSON can hold them."""
    names = list(compilation.signature)
    values = {names[index]: value for (index, *_), value in compilation.constants.items()}
    return {name: v if isinstance(v, (bool, int, float, str, type(None))) else str(v) for name, v in values.items()}


# ---- what is kept ---------------------------------------------------------------------------------------------------


def _manifest(name: str) -> Path:
    return ROOT / CACHE / f"{name}.json"


def _entry(key: str) -> Path:
    return ROOT / CACHE / "entries" / f"{key}.json"


def _is_kept(compilation: Compilation) -> bool:
    entry = _entry(compilation.key)
    return entry.exists() and (not compilation.listed or bool(_read(entry)["listings"]))


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _prune() -> None:
    """Remove what no kernel of ours is made of any more."""
    used: set[str] = set()
    for manifest in (ROOT / CACHE).glob("*.json"):
        for point in _read(manifest)["points"]:
            used |= {*point["keys"], *filter(None, point["keys64"])}
    for entry in (ROOT / CACHE / "entries").glob("*.json"):
        if entry.stem not in used:
            entry.unlink()
