"""An experiment: several ways to compute one thing, each checked, timed, and kept with the code that was generated.

Each experiment has a folder of its own:

    <folder>/<experiment>/experiment.py             what was compared: the source of each variant
    <folder>/<experiment>/metadata.json             shapes, errors, times
    <folder>/<experiment>/environment.json          machine, versions, the variables that change what is generated
    <folder>/<experiment>/kernels/<variant>.txt     the kernels alone that were generated for it, to read and to diff
    <folder>/<experiment>/generated/<variant>.py    all that was generated for it (C++ inside on a CPU)

Run `python -m snippets.notebooks.triton_optimization` for a small one.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
import torch._functorch.config
import torch._inductor.config
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from snippets.notebooks.triton_optimization_experiment import Experiment, Function, sources_of
from snippets.notebooks.triton_optimization_measured import environment, measured
from snippets.notebooks.triton_optimization_report import Report, slug
from snippets.validation.equivalence import Agreement, compare
from snippets.validation.timing import measure

KERNEL = re.compile(r"^(@triton\.jit\n.*?)^\'\'\'|^(extern \"C\".*?^\})", re.M | re.S)


def kernels_in(generated: str) -> list[str]:
    """The Triton or C++ kernels in what Inductor wrote. C++ comes without casts of indices, half as far in."""
    found = []
    for triton_kernel, cpp in KERNEL.findall(generated):
        plain = re.sub(r"static_cast<int64_t>\(([^()]*)\)", r"\1", cpp)
        found.append(triton_kernel or re.sub(r"^ +", lambda indent: " " * (len(indent[0]) // 2), plain, flags=re.M))
    return [kernel.rstrip() for kernel in found]


def run(experiment: Experiment, into: Path) -> Report:
    """Check every variant, time them side by side, and write the experiment's folder anew.

    The folder appears when all of it is there: an interruption leaves the one of the last run.

    Raises:
        AssertionError: a variant computes something else; names it.
    """
    arguments = tuple(experiment.inputs.values())
    with tempfile.TemporaryDirectory(prefix=f"{experiment.name}-", dir=_made(into)) as building:
        beside = Path(building) / experiment.name
        ready = {name: _prepare(experiment, name, arguments, beside) for name in experiment.variants}
        agreements = _checked(experiment, ready, arguments)
        mode = "device" if experiment.device.type == "cuda" else "calls"
        timed = {
            name: (lambda function=function: function(*arguments))
            for name, function in ready.items()
            if mode == "device" or name not in experiment.ours
        }
        timings = measure(timed, experiment.device, mode, rounds=20, patience=2.0)
        metadata = measured(experiment, mode, agreements, timings)
        (_made(beside) / "metadata.json").write_text(json.dumps(metadata, indent=1))
        (beside / "environment.json").write_text(json.dumps(environment(experiment.device), indent=1))
        (beside / "experiment.py").write_text(sources_of(experiment))
        target = into / experiment.name
        if target.exists():
            shutil.rmtree(target)
        beside.rename(target)
    return Report(target, agreements, timings, {name: experiment.role(name) for name in experiment.variants})


def _prepare(experiment: Experiment, name: str, arguments: tuple[Tensor, ...], folder: Path) -> Function:
    """The function to call; what the compiler generates for it is written down."""
    function = experiment.variants[name]
    if name not in experiment.compiled:
        return function
    torch._dynamo.reset()
    compiled = torch.compile(function, dynamic=False)
    fresh = (
        torch._functorch.config.patch(enable_autograd_cache=False),
        torch._inductor.config.patch(fx_graph_cache=False),
    )
    with fresh[0], fresh[1]:  # a cached result would come without its code
        _, sources = run_and_get_code(compiled, *arguments)
    for index, source in enumerate(sources):
        number = f".{index + 1}" if len(sources) > 1 else ""
        (_made(folder / "generated") / f"{slug(name)}{number}.py").write_text(source)
    kernels = [kernel for source in sources for kernel in kernels_in(source)]
    if not kernels:
        raise ValueError(
            f"{experiment.name}, {name}: expected a Triton or a C++ kernel in what was generated, got none"
        )
    (_made(folder / "kernels") / f"{slug(name)}.txt").write_text("\n\n".join(kernels) + "\n")
    return compiled


def _checked(
    experiment: Experiment, ready: Mapping[str, Function], arguments: tuple[Tensor, ...]
) -> dict[str, Agreement]:
    """Errors against float64, under the bound that the first variant sets; random results by the experiment's check."""
    results = {name: function(*arguments) for name, function in ready.items()}
    if experiment.check:
        for name, result in results.items():
            try:
                experiment.check(result, experiment.inputs)
            except AssertionError as error:
                raise AssertionError(f"{experiment.name}, {name}: {error}") from error
        return {}
    plain = next(iter(results))
    reference = experiment.variants[plain](*(t.double() for t in arguments))
    agreements = {name: compare(result, results[plain], reference) for name, result in results.items()}
    for name, agreement in agreements.items():
        if not agreement.holds:
            raise AssertionError(f"{experiment.name}, {name}: {agreement}")
    return agreements


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main() -> None:
    """A small experiment, and the folder that it leaves."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(0)).to(device)
    silu = Experiment("silu", {"x": x}, {"written out": lambda x: x * torch.sigmoid(x), "F.silu": F.silu})
    with tempfile.TemporaryDirectory() as folder:
        report = run(silu, Path(folder))
        for name, timing in report.timings.items():
            print(f"{name:12} {timing.p50 * 1e6:8.0f} us  {report.agreements[name]}")
        print("files:", *sorted(path.name for path in report.folder.rglob("*") if path.is_file()))


if __name__ == "__main__":
    main()
