"""What lies in the compiler's caches, how it is shipped, and what makes it useless.

Run `python -m snippets.compiler.compile_time_cache`.
"""

import contextlib
import importlib.util
import linecache
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from snippets.compiler.compile_time_measured import ROOT, environment
from snippets.validation.timing import synchronize


# --8<-- [start:ship]
def warm_up(function: Callable[..., object], *inputs: Tensor, to: Path) -> None:
    """Where the image is made, on a GPU of the kind that will serve: compile, and keep what the compiler made."""
    torch.compile(function)(*inputs)
    artifacts = torch.compiler.save_cache_artifacts()
    if artifacts is None:
        raise RuntimeError("nothing was compiled")
    to.write_bytes(artifacts[0])


def unpack(path: Path) -> None:
    """Where the container starts, before the first compiled call: fill the caches. It never complains of a version."""
    if torch.compiler.load_cache_artifacts(path.read_bytes()) is None:
        raise RuntimeError(f"expected artifacts of the compiler, got something else: {path}")


def compiled_anew() -> int:
    """How many graphs no cache had. In a container that was to start warm this is 0, and a test should say so."""
    counts = torch._dynamo.utils.counters["aot_autograd"]
    return counts["autograd_cache_miss"] + counts["autograd_cache_bypass"]


# --8<-- [end:ship]


# --8<-- [start:scene]
SOURCE = """
import torch

def gate(x, weight):
    hidden = x @ weight
    return LAST
"""
LAST = {
    "cuda": "torch.relu(hidden) * 2",
    "cpu": "torch.addmm(hidden, hidden, weight, alpha=2)",
}  # the second needs no C++


@dataclass(frozen=True)
class Scene:
    """A call of a compiled function, as it is after some change."""

    change: Callable[[str], str] = str  # of the source
    folder: str = "project"
    rows: int = 64
    dtype: torch.dtype = torch.float32
    seed: int = 0
    trained: bool = False
    setting: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    cache: str = "cache"


# --8<-- [end:scene]


@contextlib.contextmanager
def precision(value: str) -> Iterator[None]:
    """Set the precision of products. Setting it back by name leaves another state than the one before."""
    states = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    usual = [state.fp32_precision for state in states]
    torch.set_float32_matmul_precision(value)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")
        for state, before in zip(states, usual, strict=True):
            state.fp32_precision = before


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def other_gpu() -> contextlib.AbstractContextManager:
    """As if the machine said another name of its GPU, or of its kind of device."""
    from torch._inductor.codecache import CacheBase

    system = CacheBase.get_system()
    return patch.object(CacheBase, "get_system", lambda: system | {"device": {"name": "another"}})


def other_torch() -> contextlib.AbstractContextManager:
    """As if PyTorch's sources hashed to something else, as each version's do."""
    return patch("torch._inductor.codecache.torch_key", lambda: b"another version")


def own_pass() -> contextlib.AbstractContextManager:
    """A pass of ours over the graph, as a plain function: nobody can tell whether it is the same as last time."""
    return torch._inductor.config.patch(post_grad_custom_pre_pass=lambda graph: None)


# --8<-- [start:changes]
BASE = Scene()
CHANGES = {
    "nothing": BASE,
    "other values in the weights": replace(BASE, seed=1),
    "a comment, other line numbers": replace(BASE, change=lambda source: "# a comment\n" + source),
    "the file stands elsewhere": replace(BASE, folder="elsewhere"),
    "the cache folder is a copy": BASE,
    "the number of compile workers": replace(BASE, setting=lambda: torch._inductor.config.patch(compile_threads=2)),
    "a local variable is renamed": replace(BASE, change=lambda source: source.replace("hidden", "product")),
    "the function is renamed": replace(BASE, change=lambda source: source.replace("gate", "door")),
    "a constant in the source": replace(BASE, change=lambda source: source.replace("2", "3")),
    "another number of rows": replace(BASE, rows=96),
    "another dtype": replace(BASE, dtype=torch.bfloat16),
    "gradients are wanted": replace(BASE, trained=True),
    "an option of Inductor": replace(BASE, setting=lambda: torch._inductor.config.patch(epilogue_fusion=False)),
    "matmul precision 'high'": replace(BASE, setting=lambda: precision("high")),
    "'highest', which is the default": replace(BASE, setting=lambda: precision("highest")),
    "deterministic algorithms": replace(BASE, setting=deterministic),
    "another GPU (its name)": replace(BASE, setting=other_gpu),
    "another PyTorch (its key)": replace(BASE, setting=other_torch),
    "a pass of one's own": replace(BASE, setting=own_pass),
    "nothing, after all of these": BASE,
}
# --8<-- [end:changes]


# --8<-- [start:outcome]
@dataclass(frozen=True)
class Outcome:
    """What the two caches of graphs said, and how long the first call took."""

    autograd: str
    inductor: str
    seconds: float


def outcome(scene: Scene, root: Path, device: str) -> Outcome:
    """Call a scene's function for the first time, with no more in memory than after the start of a process."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(scene.seed)
    function = next(value for name, value in vars(module(scene, root, device)).items() if name in ("gate", "door"))
    x = torch.randn(scene.rows, 64, device=device, dtype=scene.dtype)
    weight = torch.randn(64, 64, device=device, dtype=scene.dtype, requires_grad=scene.trained)
    with scene.setting(), caches_in(root / scene.cache):
        began = time.perf_counter()
        torch.compile(function, dynamic=False)(x, weight)
        synchronize(x.device)
        seconds = time.perf_counter() - began
    counters = torch._dynamo.utils.counters
    return Outcome(
        said(counters["aot_autograd"], "autograd_cache"), said(counters["inductor"], "fxgraph_cache"), seconds
    )


def caches_in(folder: Path) -> contextlib.AbstractContextManager:
    """All caches in this folder: Triton's is named, too, since a compile worker would stay with the first one."""
    return patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=str(folder), TRITON_CACHE_DIR=str(folder / "triton"))


def said(counts: Counter, name: str) -> str:
    """The answer of a cache: hit, miss or bypass; "not asked" where another had answered already."""
    return next((what for what in ("bypass", "miss", "hit") if counts[f"{name}_{what}"]), "not asked")


# --8<-- [end:outcome]


def module(scene: Scene, root: Path, device: str) -> ModuleType:
    """The scene's source as a module, written to its folder."""
    path = root / scene.folder / "layer.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(scene.change(SOURCE.replace("LAST", LAST[device])))
    spec = importlib.util.spec_from_file_location("layer", path)
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    linecache.clearcache()  # Dynamo reads the lines, and the file is not what it was
    return loaded


# --8<-- [start:operator]
def operator(transposed: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """A product as a custom operator. With `transposed` its gradient is right, and without it is wrong."""

    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (weight,) = context.saved_tensors
        return gradient @ (weight.mT if transposed else weight), None

    def keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    schema = "(Tensor x, Tensor weight) -> Tensor"
    found = torch.library.custom_op("guide::product", lambda x, weight: x @ weight, mutates_args=(), schema=schema)
    found.register_fake(lambda x, weight: torch.empty_like(x))
    found.register_autograd(backward, setup_context=keep)
    return lambda x, weight: torch.ops.guide.product(x, weight)


def of_operator(transposed: bool, tag: str, device: str) -> tuple[str, bool]:
    """What the cache says of the operator's graph, and whether the compiled gradient is the one of the operator."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    function, gradients = operator(transposed), []
    x, weight = (torch.randn(16, 16, device=device) for _ in range(2))
    with torch.compiler.config.patch(cache_key_tag=tag):
        for call in (function, torch.compile(function)):
            leaf = x.detach().requires_grad_()
            call(leaf, weight).sum().backward()
            gradients.append(leaf.grad)
    return said(torch._dynamo.utils.counters["aot_autograd"], "autograd_cache"), torch.allclose(*gradients, atol=1e-3)


# --8<-- [end:operator]


def kinds(folder: Path) -> dict[str, tuple[int, int]]:
    """The folders at the top of a cache by what is in them: number of files, bytes."""
    found: dict[str, tuple[int, int]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            top = path.relative_to(folder).parts[0]
            kind = top if len(top) > 2 else f"generated {path.suffix.lstrip('.')}"
            files, size = found.get(kind, (0, 0))
            found[kind] = files + 1, size + path.stat().st_size
    return found


def show(root: Path) -> None:
    """What is in the folder, what goes into the artifacts, and which change makes all of it useless."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    cold = outcome(BASE, root, device)  # and with it, what is imported only when something is compiled
    artifacts = torch.compiler.save_cache_artifacts()
    if artifacts is None:
        raise RuntimeError("nothing was compiled")
    print("==== files")
    print(listing(root / BASE.cache))
    print("==== artifacts")
    print(f"{len(artifacts[0]) / 1e3:.1f} KB in all")
    for kind, keys in sorted(artifacts[1].artifacts.items()):
        print(f"{kind:<20} {len(keys):>3}")

    print("==== changes")
    print(line("(the first call of all)", cold))
    for number, (change, scene) in enumerate(CHANGES.items()):
        cache = f"cache-{number}"  # each change meets what the first call left, and nothing else
        shutil.copytree(root / BASE.cache, root / cache)
        print(line(change, outcome(replace(scene, cache=cache), root, device)))

    print("==== shipped")
    file = root / "artifacts"
    file.write_bytes(artifacts[0])
    for what, setting in (
        ("unpacked into an empty folder", BASE.setting),
        ("the same, under another PyTorch", other_torch),
    ):
        scene = replace(BASE, cache=what.replace(" ", "-"), setting=setting)
        with setting(), caches_in(root / scene.cache):
            unpack(file)
        before = listing(root / scene.cache)
        print(line(what, outcome(scene, root, device)))
        if setting is BASE.setting:
            unpacked = f"after unpacking\n{before}\nafter the first call\n{listing(root / scene.cache)}"
    print("==== unpacked")
    print(unpacked)

    print("==== wrong hit")
    for what, transposed, tag in (
        ("a gradient with a mistake", False, ""),
        ("the mistake is mended", True, ""),
        ("the same, cache_key_tag='2'", True, "2"),
    ):
        answer, right = of_operator(transposed, tag, device)
        print(f"{what:<33} {answer:<12} gradient as the code has it: {'yes' if right else 'no'}")


def listing(folder: Path) -> str:
    return "\n".join(
        f"{kind:<20} {files:>3} files {size / 1e3:>8.1f} KB" for kind, (files, size) in kinds(folder).items()
    )


def line(what: str, found: Outcome) -> str:
    return f"{what:<33} {found.autograd:<12} {found.inductor:<12} {found.seconds:>6.2f} s"


def main() -> None:
    """`show` in a new process, which was told nothing about caches but where they are."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "snippets.compiler.compile_time_cache", folder]
        # cuBLAS looks once, at the first product, whether it may be deterministic
        env = environment(f"{folder}/{BASE.cache}", CUBLAS_WORKSPACE_CONFIG=":4096:8")
        sys.exit(subprocess.run(command, cwd=ROOT, env=env, check=False).returncode)


if __name__ == "__main__":
    if sys.argv[1:]:
        show(Path(sys.argv[1]))
    else:
        main()
