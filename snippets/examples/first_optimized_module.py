"""What each step of "Your first optimized module" changed: where the time of a call goes, and how much is left to run.

Run `python -m snippets.examples.first_optimized_module`. It compiles one module.
"""

import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor import metrics

from snippets.compiler.graph_breaks import break_log, cause
from snippets.compiler.inductor_code_launches import Launch, Operations
from snippets.examples.first_optimized_module_draft import make_draft, make_input
from snippets.examples.first_optimized_module_faults import by_allclose, faults
from snippets.examples.first_optimized_module_solutions import Better, compiled, judge
from snippets.validation.diagnosis import diagnose, read, record

BATCHES = (64, 3, 17, 200)


# --8<-- [start:report]
def report(model: Callable, x: Tensor) -> str:
    """Where the time of a warm call goes. The trace is not kept."""
    for _ in range(10):
        model(x)
    with tempfile.TemporaryDirectory() as folder:
        return str(diagnose(read(record(lambda: model(x), Path(folder) / "trace.json"))))


# --8<-- [end:report]


# --8<-- [start:count]
def operations(model: Callable, x: Tensor) -> list[str]:
    """The operations that a call runs, in their order, without views."""
    launches: list[Launch] = []
    with Operations(launches):
        model(x)
    return [launch.name for launch in launches]


def waits(names: list[str]) -> int:
    """How often the host reads a number that the GPU has to compute first."""
    return sum(name.startswith(("aten._local_scalar_dense", "aten.nonzero")) for name in names)


# --8<-- [end:count]


# --8<-- [start:graphs]
def graphs(call: Callable) -> tuple[int, list[str]]:
    """How many graphs a compiled model needs for four batch sizes, and the causes of the breaks between them."""
    torch.compiler.reset()
    counters.clear()
    with break_log() as log:
        for batch in BATCHES:
            call(make_input(batch))
    return counters["stats"]["unique_graphs"], sorted({cause(entry) for entry in log})


# --8<-- [end:graphs]


def words(function: Callable[[], object]) -> str:
    """What an error says in its first sentence."""
    try:
        function()
    except Exception as error:  # noqa: BLE001  whatever kind it is, that is what is asked
        said = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines()[0]
        return f"{type(error).__name__}: {re.split(r'[.!] | [(]unhinted', said)[0]}"
    return "accepted"


def show(draft: nn.Module, better: nn.Module) -> None:
    x = make_input(64)
    print("==== operations")
    print(f"{'':<8}{'operations':>12}{'waits':>8}   most often")
    for name, model in {"draft": draft, "better": better}.items():
        names = operations(model, x)
        most = sorted(Counter(names).items(), key=lambda item: (-item[1], item[0]))[:4]
        print(f"{name:<8}{len(names):>12}{waits(names):>8}   " + ", ".join(f"{what} {count}" for what, count in most))

    print("==== graphs")
    whole, one_size = (partial(torch.compile, backend="eager", dynamic=dynamic) for dynamic in (None, False))
    for name, call in {
        "draft": whole(draft),
        "better, dynamic=False": one_size(better),
        "better": whole(better),
    }.items():
        found, causes = graphs(call)
        print(f"{name:<24}{found} graphs for four batch sizes, breaks: {', '.join(causes) or 'none'}")
    metrics.reset()
    torch.compiler.reset()
    fast = compiled(better)
    fast(x)
    print(f"{'better, by Inductor':<24}{metrics.generated_kernel_count} kernels written, of {len(names)} operations")

    for name, model in {"profile": draft, "profile, better": better, "profile, compiled": fast}.items():
        print(f"==== {name}")
        print(report(model, x))

    print("==== refused")
    print(f"fullgraph=True  {words(lambda: torch.compile(draft, fullgraph=True, backend='eager')(x))}")
    print(f"torch.export    {words(lambda: torch.export.export(draft, (x,)))}")

    print("==== judged")
    inputs = [make_input(8), make_input(8)]
    print(f"{'':<30}{'allclose 1e-2':>14}{'allclose 1e-5':>14}{'judge':>10}")
    checks = (
        lambda candidate: by_allclose(candidate, draft, 1e-2),
        lambda candidate: by_allclose(candidate, draft, 1e-5),
        lambda candidate: judge(candidate, draft, inputs),
    )
    for name in ("better", *faults(better)):
        made = [{"better": better, **faults(better)}[name] for _ in checks]  # for each anew: one remembers
        said = [("refuses", "passes")[check(candidate)] for check, candidate in zip(checks, made, strict=True)]
        print(f"{name:<30}{said[0]:>14}{said[1]:>14}{said[2]:>10}")


@torch.no_grad()
def main() -> None:
    warnings.simplefilter("ignore")
    draft = make_draft()
    show(draft, Better(draft))


if __name__ == "__main__":
    main()
