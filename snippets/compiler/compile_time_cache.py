"""What lies in the compiler's caches, how it is shipped, and what makes it useless.

Run `python -m snippets.compiler.compile_time_cache`.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from snippets.compiler.compile_time_cache_changes import BASE, CHANGES, other_torch
from snippets.compiler.compile_time_cache_outcome import Outcome, caches_in, outcome, said
from snippets.compiler.compile_time_cache_ship import unpack
from snippets.compiler.compile_time_measured import ROOT, environment


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
