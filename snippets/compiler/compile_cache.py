"""A hit that returns an old result: an operator's decomposition has changed, and the caches' key does not contain it.

Run `python -m snippets.compiler.compile_cache`.
"""

import subprocess
import sys
import tempfile

import torch
from torch import Tensor
from torch._dynamo.utils import counters

from snippets.compiler.compile_time_measured import ROOT, environment


# --8<-- [start:decomposition]
def answer(factor: float, tag: str = "") -> tuple[str, str, bool]:
    """What both caches say of an operator with this factor, and whether compiled code gives what eager code does."""
    torch.compiler.reset()  # as after a restart: only the folder remembers
    counters.clear()
    x = torch.linspace(0, 1, 256).view(16, 16)

    def function(x: Tensor) -> Tensor:
        return torch.ops.guide_cache.scaled(x)

    with torch.library._scoped_library("guide_cache", "FRAGMENT") as library, torch.no_grad():
        library.define("scaled(Tensor x) -> Tensor")
        # traced: the graph contains addmm and the factor, and not a call of the operator
        library.impl("scaled", lambda x: torch.addmm(x, x, x, alpha=factor), "CompositeImplicitAutograd")
        with torch.compiler.config.patch(cache_key_tag=tag):
            same = torch.allclose(torch.compile(function)(x), function(x))
    return said("aot_autograd", "autograd_cache"), said("inductor", "fxgraph_cache"), same


def said(stage: str, cache: str) -> str:
    return "hit" if counters[stage][f"{cache}_hit"] else "miss"


# --8<-- [end:decomposition]


def show() -> None:
    print(f"{'':<36}{'AOTAutograd':<14}{'Inductor':<12}compiled = eager")
    for what, factor, tag in (
        ("a decomposition with a mistake", 3.0, ""),
        ("the mistake is corrected", 2.0, ""),
        ("the same, cache_key_tag='2'", 2.0, "2"),
    ):
        autograd, inductor, same = answer(factor, tag)
        print(f"{what:<36}{autograd:<14}{inductor:<12}{'yes' if same else 'no'}")


def main() -> None:
    """`show` in a new process, which was told nothing about caches but where they are."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "snippets.compiler.compile_cache", "show"]
        sys.exit(subprocess.run(command, cwd=ROOT, env=environment(folder), check=False).returncode)


if __name__ == "__main__":
    if sys.argv[1:]:
        show()
    else:
        print("==== old decomposition", flush=True)
        main()
