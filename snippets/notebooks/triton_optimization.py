"""An experiment: several ways to compute one thing, each checked, timed, and kept with the code that was generated.

Each experiment has a folder of its own:

    <folder>/<experiment>/experiment.py             what was compared: the source of each variant
    <folder>/<experiment>/metadata.json             shapes, errors, times
    <folder>/<experiment>/environment.json          machine, versions, the variables that change what is generated
    <folder>/<experiment>/kernels/<variant>.txt     the kernels alone that were generated for it, to read and to diff
    <folder>/<experiment>/generated/<variant>.py    all that was generated for it (C++ inside on a CPU)

Run `python -m snippets.notebooks.triton_optimization` for a small one.
"""

import difflib
import inspect
import json
import os
import platform
import re
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import torch
import torch._functorch.config
import torch._inductor.config
import torch.nn.functional as F
import triton
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from snippets.validation.equivalence import Agreement, compare
from snippets.validation.timing import Timing, measure

COLOURS = {  # the site's, and others where a notebook stands on its own
    "plain": "var(--rp-eager, #8a8a8a)",
    "compiled": "var(--rp-compile, #2d6cb5)",
    "ours": "var(--rp-ours, #b5460f)",
}
# paths are not shown: they are the machine's own
CHANGES = (
    "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING",
    "TORCH_LOGS",
    "TRITON_INTERPRET",
    "OMP_NUM_THREADS",
)
Function = Callable[..., Tensor]
Check = Callable[[Tensor, Mapping[str, Tensor]], None]


@dataclass(frozen=True)
class Experiment:
    """Several ways to compute one thing from the same tensors.

    Attributes:
        name: of the experiment's folder.
        inputs: the tensors, all on one device.
        variants: by name; the first one is plain PyTorch and sets the error bound.
        compiled: names of the variants that `torch.compile` is to compile.
        ours: names of those that launch Triton kernels of their own: on a CPU these are interpreted, so they are
            checked and not timed.
        check: for random results, which cannot be held against the first variant's: is called with a variant's result
            and the inputs, and raises AssertionError.
    """

    name: str
    inputs: Mapping[str, Tensor]
    variants: Mapping[str, Function]
    compiled: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    check: Check | None = None

    @property
    def device(self) -> torch.device:
        return next(iter(self.inputs.values())).device

    def role(self, name: str) -> str:
        """What a variant is: "compiled", "ours" or "plain"."""
        return "compiled" if name in self.compiled else "ours" if name in self.ours else "plain"


@dataclass(frozen=True)
class Report:
    """What an experiment found, by variant: errors where they can be stated, seconds where they mean something."""

    folder: Path
    agreements: Mapping[str, Agreement]
    timings: Mapping[str, Timing]
    roles: Mapping[str, str]

    def _repr_html_(self) -> str:
        """Milliseconds of each timed variant as bars, shortest first, in the site's colours; a notebook shows this."""
        times = sorted((timing.p50 * 1e3, name) for name, timing in self.timings.items())
        longest = times[-1][0]
        bars = "".join(
            f"<span>{escape(name)}</span><span style='display: flex; align-items: center; gap: 0.5em'>"
            f"<span style='width: {75 * ms / longest:.1f}%; height: 1.1em; background: {COLOURS[self.roles[name]]}'>"
            f"</span><b style='white-space: nowrap'>{ms:.3g} ms</b></span>"
            for ms, name in times
        )
        grid = "display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.45em 0.8em; max-width: 40em"
        return f"<div style='{grid}'>{bars}</div>"

    def code(self, variant: str) -> str:
        """The kernels that the compiler generated for a variant, without what surrounds them."""
        return (self.folder / "kernels" / f"{_slug(variant)}.txt").read_text()

    def diff(self, variant: str, other: "Report", others: str) -> str:
        """What differs between the generated kernels of two variants, line by line; empty if nothing does."""
        one, two = self.code(variant).splitlines(), other.code(others).splitlines()
        return "\n".join(difflib.unified_diff(one, two, variant, others, lineterm="", n=1))


@dataclass(frozen=True)
class Listing:
    """The files of a folder's experiments; a notebook shows them as links, relative to the site's page."""

    files: tuple[str, ...]

    def _repr_html_(self) -> str:
        links = (f'<li><a href="../experiments/{name}"><code>{escape(name)}</code></a></li>' for name in self.files)
        return f"<ul>{''.join(links)}</ul>"


def listing(folder: Path, under: str = "") -> Listing:
    """What the experiments in a folder left, or those whose name begins with `under`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return Listing(tuple(name for path in files if (name := path.relative_to(folder).as_posix()).startswith(under)))


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
        metadata = _metadata(experiment, mode, agreements, timings)
        (_made(beside) / "metadata.json").write_text(json.dumps(metadata, indent=1))
        (beside / "environment.json").write_text(json.dumps(_environment(experiment.device), indent=1))
        (beside / "experiment.py").write_text(_sources(experiment))
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
        (_made(folder / "generated") / f"{_slug(name)}{number}.py").write_text(source)
    kernels = [kernel for source in sources for kernel in kernels_in(source)]
    if not kernels:
        raise ValueError(
            f"{experiment.name}, {name}: expected a Triton or a C++ kernel in what was generated, got none"
        )
    (_made(folder / "kernels") / f"{_slug(name)}.txt").write_text("\n\n".join(kernels) + "\n")
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


def _metadata(experiment: Experiment, mode: str, agreements: Mapping, timings: Mapping) -> dict:
    """What was measured: shapes, errors, times."""
    return {
        "experiment": experiment.name,
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "inputs": {name: {"shape": list(t.shape), "dtype": str(t.dtype)[6:]} for name, t in experiment.inputs.items()},
        "timed_as": mode,
        "seconds": {name: asdict(timing) for name, timing in timings.items()},
        "errors": {name: {"error": one.error, "bound": one.bound} for name, one in agreements.items()},
        "not_timed": [] if mode == "device" else list(experiment.ours),
    }


def _environment(device: torch.device) -> dict:
    """What the same experiment may give other results with."""
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "machine": machine or platform.machine(),
        "device": device.type,
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__},
        "variables": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(CHANGES)},
    }


def _sources(experiment: Experiment) -> str:
    """The variants' sources, each function once."""
    named = {
        function: [n for n, f in experiment.variants.items() if f is function]
        for function in experiment.variants.values()
    }
    parts = [f"# {', '.join(names)}\n{textwrap.dedent(_source(function))}" for function, names in named.items()]
    return "\n\n".join(parts)


def _source(function: Function) -> str:
    try:
        return inspect.getsource(function)
    except TypeError:  # written in C
        return f"{getattr(function, '__name__', function)}  # of torch itself\n"


def _slug(name: str) -> str:
    """A variant's name as a file's: "F.silu, compiled" is "f-silu-compiled"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


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
