"""What each step of "Your first optimized module" changed, in numbers that are the same on every machine.

Run `python -m snippets.examples.first_optimized_module`. It needs a C++ compiler, also where there is a GPU.
"""

import re
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor import metrics

from snippets.compiler.inductor_code import Launch, Operations
from snippets.examples.first_optimized_module_draft import make_draft, make_input
from snippets.examples.first_optimized_module_solutions import Better, compiled, judge, profile, ship

BATCHES = (64, 3, 17, 200)


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
def graphs(compile_it: Callable[[nn.Module], Callable], model: nn.Module) -> tuple[int, int, int]:
    """How many graphs four batch sizes need, how many breaks are in them, and how many kernels Inductor writes."""
    torch.compiler.reset()
    counters.clear()
    metrics.reset()
    call = compile_it(model)
    for batch in BATCHES:
        call(make_input(batch))
    stats = counters["stats"]
    return stats["unique_graphs"], sum(counters["graph_break"].values()), metrics.generated_kernel_count


# --8<-- [end:graphs]


# --8<-- [start:faults]
def faults(right: Callable) -> Mapping[str, Callable]:
    """The candidate with one fault each: what a check has to refuse."""

    def changed(change: Callable[[Tensor], object]) -> Callable:
        def faulty(x: Tensor) -> Tensor:
            change(y := right(x).clone())
            return y

        return faulty

    first: list[Tensor] = []

    def stale(x: Tensor) -> Tensor:
        first.append(right(x).clone())
        return first[0]

    def clears_its_input(x: Tensor) -> Tensor:
        return right(x.zero_())

    def rounded(x: Tensor) -> Tensor:
        return right(x.bfloat16().to(x.dtype))

    return {
        "5% too large": changed(lambda y: y.mul_(1.05)),
        "the last row is not written": changed(lambda y: y[-1].zero_()),
        "one number is NaN": changed(lambda y: y.view(-1)[0].fill_(float("nan"))),
        "its first result for ever": stale,
        "overwrites its input": clears_its_input,
        "input rounded to bf16": rounded,
        "result in float64": lambda x: right(x).double(),
    }


# --8<-- [end:faults]


def by_allclose(candidate: Callable, draft: nn.Module, tolerance: float) -> bool:
    """The check that most people write."""
    x = make_input(8)
    result, expected = candidate(x), draft(x)
    return result.dtype == expected.dtype and torch.allclose(result, expected, rtol=tolerance, atol=tolerance)


# --8<-- [start:elsewhere]
SERVER = """
import sys
import torch
import torch._inductor.package

model = torch._inductor.aoti_load_package(sys.argv[1])
given = torch.load(sys.argv[2])
torch.save([model(x) for x in given], sys.argv[3])
"""


def elsewhere(package: Path, inputs: list[Tensor]) -> list[Tensor]:
    """What a process returns that has PyTorch and the package, and cannot import the model.

    Raises:
        RuntimeError: the process failed; with the last line of its error.
    """
    given, returned = package.with_name("given.pt"), package.with_name("returned.pt")
    torch.save(inputs, given)
    command = [sys.executable, "-I", "-c", SERVER, str(package), str(given), str(returned)]
    done = subprocess.run(command, cwd=package.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    results: list[Tensor] = torch.load(returned)
    return results


# --8<-- [end:elsewhere]


def words(function: Callable[[], object]) -> str:
    """What an error says in its first sentence."""
    try:
        function()
    except Exception as error:  # noqa: BLE001  whatever kind it is, that is what is asked
        said = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines()[0]
        return f"{type(error).__name__}: {re.split(r'[.!] | [(]unhinted', said)[0]}"
    return "accepted"


def show(draft: nn.Module, better: nn.Module, folder: Path) -> None:
    x = make_input(64)
    print("==== operations")
    print(f"{'':<8}{'operations':>12}{'waits':>8}   most often")
    for name, model in {"draft": draft, "better": better}.items():
        often = profile(model, x, folder / "trace.json")
        names = operations(model, x)
        most = sorted(often.items(), key=lambda item: (-item[1], item[0]))[:4]
        print(f"{name:<8}{len(names):>12}{waits(names):>8}   " + ", ".join(f"{n} {count}" for n, count in most))

    print("==== graphs")
    print(f"{'four batch sizes':<30}{'graphs':>8}{'breaks':>8}{'kernels written':>18}")
    for name, (compile_it, model) in {
        "draft, torch.compile(draft)": (torch.compile, draft),
        "better, dynamic=False": (lambda model: torch.compile(model, dynamic=False), better),
        "better, the solution": (compiled, better),
    }.items():
        found, breaks, kernels = graphs(compile_it, model)
        print(f"{name:<30}{found:>8}{breaks:>8}{kernels:>18}")

    print("==== refused")
    print(f"fullgraph=True  {words(lambda: torch.compile(draft, fullgraph=True, backend='eager')(x))}")
    print(f"torch.export    {words(lambda: torch.export.export(draft, (x,)))}")

    print("==== judged")
    inputs = [make_input(8), make_input(3)]
    print(f"{'':<30}{'allclose 1e-2':>14}{'allclose 1e-5':>14}{'judge':>10}")
    for name, candidate in {"better": better, **faults(better)}.items():
        verdicts = (by_allclose(candidate, draft, 1e-2), by_allclose(candidate, draft, 1e-5))
        said = [("refuses", "passes")[verdict] for verdict in (*verdicts, judge(candidate, draft, inputs))]
        print(f"{name:<30}{said[0]:>14}{said[1]:>14}{said[2]:>10}")

    print("==== package")
    ship(better, path := folder / "model.pt2")
    with zipfile.ZipFile(path) as package:
        print(f"{len(package.namelist())} files, {sum(entry.file_size for entry in package.infolist()) / 1e3:.0f} KB")
    inputs = [make_input(batch) for batch in (1, 2, 64, 200)]
    for x, y in zip(inputs, elsewhere(path, inputs), strict=True):
        same = judge(lambda x, y=y: y, draft, [x])
        print(f"called with {len(x):>3} accounts in a process without the model's source: {'right' if same else 'wrong'}")


@torch.no_grad()
def main() -> None:
    warnings.simplefilter("ignore")
    draft = make_draft()
    with tempfile.TemporaryDirectory() as folder:
        show(draft, Better(draft), Path(folder))


if __name__ == "__main__":
    main()
