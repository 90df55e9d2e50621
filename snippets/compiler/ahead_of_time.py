"""A package made by AOTInductor: built, looked into, served without the model's source in Python and in C++, and timed.

Run `python -m snippets.compiler.ahead_of_time`. It needs a C++ compiler, also where there is a GPU.
"""

import importlib
import inspect
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from snippets.compiler.compile_time import SIZES, Block, Size, Stack, environment

ROOT = Path(__file__).parents[2]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZE = SIZES[DEVICE]
LAYERS = 16 if DEVICE == "cuda" else 2
MOST = 64  # sequences in a batch


# --8<-- [start:model]
class Served(nn.Module):
    """Layers of a decoder, and a learned scale."""

    def __init__(self, layers: int, size: Size) -> None:
        super().__init__()
        self.stack = Stack([Block(size.width, size.heads) for _ in range(layers)])
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.stack(x) * self.scale


def make_model() -> Served:
    with torch.device(SIZE.device):
        return Served(LAYERS, SIZE).to(SIZE.dtype).eval()


def make_input(batch: int = 2) -> Tensor:
    return torch.randn(batch, SIZE.tokens, SIZE.width, device=SIZE.device, dtype=SIZE.dtype)


# --8<-- [end:model]


# --8<-- [start:build]
def build(model: nn.Module, path: Path) -> torch.export.ExportedProgram:
    """Export with a batch that stays dynamic, compile, and write one file."""
    with torch.no_grad():
        program = torch.export.export(
            model, (make_input(),), dynamic_shapes={"x": {0: torch.export.Dim("batch", min=1, max=MOST)}}
        )
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    return program


# --8<-- [end:build]


# --8<-- [start:serve]
def later_call(call: Callable[[], object]) -> float:
    """Seconds of a call once all is warm: the best round of a quarter of a second."""
    import time

    import torch

    rounds, end = [], time.perf_counter() + 0.25
    while (begin := time.perf_counter()) < end:
        for _ in range(20):
            call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        rounds.append((time.perf_counter() - begin) / 20)
    return min(rounds)


def serve(package: str, given: str, returned: str, bare: str = "") -> None:
    """A whole server: it needs PyTorch, the package and an input. It says when each stage is over.

    Args:
        bare: anything: load with the class that `aoti_load_package` wraps, which is private, and skips a check.
    """
    import time

    import torch

    def done(stage: str) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        print(stage, time.time())

    done("torch")
    if bare:
        loader = torch._C._aoti.AOTIModelPackageLoader(package, "model", False, 1, -1)
        metadata: dict[str, str] = loader.get_metadata()

        def model(x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = loader.boxed_run([x])[0]
            return output

    else:
        import torch._inductor.package  # of the compiler's Python, what can read a package

        done("compiler")
        loaded = torch._inductor.aoti_load_package(package)
        metadata, model = loaded.get_metadata(), loaded.__call__
    x = torch.load(given).to(metadata["AOTI_DEVICE_KEY"])
    done("load")
    with torch.inference_mode():
        torch.save(model(x).cpu(), returned)
        done("first call")
        print("later call", later_call(lambda: model(x)))


# --8<-- [end:serve]


SERVER = r"""
// --8<-- [start:cpp]
// server PACKAGE GIVEN RETURNED: the same without Python.
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <vector>

void done(const char* stage) {
  if (torch::cuda::is_available()) torch::cuda::synchronize();
  std::chrono::duration<double> since = std::chrono::system_clock::now().time_since_epoch();
  std::printf("%s %.6f\n", stage, since.count());
}

int main(int, char** arguments) {
  c10::InferenceMode no_gradients;
  done("torch");
  torch::inductor::AOTIModelPackageLoader model(arguments[1]);
  std::ifstream file(arguments[2], std::ios::binary);
  std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
  at::Tensor x = torch::jit::pickle_load(bytes).toTensor();
  if (model.get_metadata().at("AOTI_DEVICE_KEY") == "cuda") x = x.to(at::kCUDA);
  done("load");
  at::Tensor y = model.run({x})[0].to(at::kCPU);
  bytes = torch::jit::pickle_save(y);
  std::ofstream(arguments[3], std::ios::binary).write(bytes.data(), bytes.size());
  done("first call");
  double best = 1e9;
  auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(250);
  for (auto begin = end; (begin = std::chrono::steady_clock::now()) < end;) {
    for (int call = 0; call < 20; ++call) model.run({x});
    if (torch::cuda::is_available()) torch::cuda::synchronize();
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count() / 20);
  }
  std::printf("later call %.9f\n", best);
}
// --8<-- [end:cpp]
"""


# --8<-- [start:compile]
def compile_server(folder: Path) -> Path:
    """`g++ server.cpp` with PyTorch's headers and libraries."""
    torch_ = Path(torch.__file__).parent
    (folder / "server.cpp").write_text(SERVER)
    gpu = ["-ltorch_cuda", "-lc10_cuda"] if DEVICE == "cuda" else []
    command = [
        *shlex.split(os.environ.get("CXX") or "g++"),
        "-std=c++20", str(folder / "server.cpp"), "-o", str(folder / "server"),
        f"-I{torch_}/include", f"-I{torch_}/include/torch/csrc/api/include",
        f"-L{torch_}/lib", f"-Wl,-rpath,{torch_}/lib",
        "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", *gpu,
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return folder / "server"


# --8<-- [end:compile]


# --8<-- [start:source]
def serve_source(way: str, weights: str, given: str, returned: str) -> None:
    """The same from the model's source, eager or with `torch.compile`."""

    def done(stage: str) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        print(stage, time.time())

    done("torch")
    if way == "compile":
        importlib.import_module("torch._inductor.compile_fx")  # else the first call would
        done("compiler")
    model = make_model()
    model.load_state_dict(torch.load(weights))
    x = torch.load(given).to(SIZE.device)
    done("load")
    if way == "compile":
        model.compile()
        torch._dynamo.mark_dynamic(x, 0)
    with torch.inference_mode():
        torch.save(model(x).cpu(), returned)
        done("first call")
        print("later call", later_call(lambda: model(x)))


# --8<-- [end:source]


STAGES = ("torch", "compiler", "load", "first call")


def started(command: list[str], folder: Path, cache: Path) -> tuple[dict[str, float], float]:
    """Seconds that each stage of a new process took, and one of its later calls."""
    variables = environment(str(cache), OMP_NUM_THREADS="1")
    began = time.time()
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.strip()}")
    ends = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in done.stdout.splitlines()}
    stages, last = dict.fromkeys(STAGES, 0.0), began
    for stage in (stage for stage in STAGES if stage in ends):
        stages[stage], last = ends[stage] - last, ends[stage]
    return stages, ends["later call"]


def close(path: Path, expected: Tensor) -> str:
    distance = (torch.load(path).float() - expected.float()).norm() / expected.float().norm()
    return "yes" if distance < (0.02 if expected.dtype == torch.bfloat16 else 1e-5) else "no"


# ---- a package that is not what was meant ---------------------------------------------------------------------------


# --8<-- [start:lost]
class Head(nn.Module):
    """Classes from features, with a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.relu(x)) / self.temperature


def build_lost(head: Head, path: Path) -> None:
    """Exported from a batch of one, and weights left out: each has its consequence below."""
    x = torch.randn(1, 16, device=DEVICE)
    with torch.no_grad():
        program = torch.export.export(head, (x,), dynamic_shapes={"x": {0: torch.export.Dim.AUTO}})
    options = {"aot_inductor.package_constants_in_so": False, "always_keep_tensor_constants": True}
    torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=options)


# --8<-- [end:lost]


# --8<-- [start:wrong]
def wrong_inputs(package: str, weights: str) -> None:
    """Call eager code, and a package that was made for one row of 16 float32, with other inputs."""
    import typing

    import torch

    model = torch._inductor.aoti_load_package(package)
    device = model.get_metadata()["AOTI_DEVICE_KEY"]
    state = torch.load(weights, map_location=device)
    model.load_constants(state, check_full_update=True)

    def eager(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x.relu(), state["linear.weight"], state["linear.bias"]) / state["temperature"]

    def called(call: typing.Any, x: torch.Tensor) -> torch.Tensor | str:
        try:
            result: torch.Tensor = call(x)
            return result
        except RuntimeError as error:
            return f"{error}\n".strip().splitlines()[0]

    torch.manual_seed(0)
    x = torch.randn(5, 32, device=device)
    cases = {
        "one row": torch.randn(1, 16, device=device),
        "five rows": torch.randn(5, 16, device=device),
        "17 features": torch.randn(1, 17, device=device),
        "every second feature": x[:1, ::2],
        "float64": torch.randn(1, 16, device=device).double(),
    }
    for what, given in cases.items():
        right, found = called(eager, given), called(model, given)
        if isinstance(found, str):
            print(f"{what:<22}{found}")
        elif isinstance(right, str):
            print(f"{what:<22}returns {len(found)} row, no error; eager refuses")
        else:
            same = found.shape == right.shape and torch.allclose(found, right, atol=1e-4)
            print(f"{what:<22}returns {len(found)} row, {'right' if same else 'wrong and no error'}")


# --8<-- [end:wrong]


def run_alone(function: Any, *arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a function that imports what it needs in a process that finds nothing of ours."""
    return subprocess.run(
        alone(function, *arguments),
        cwd=folder,
        env=environment(str(folder / "package"), OMP_NUM_THREADS="1") | variables,
        capture_output=True,
        text=True,
        check=False,
    )


# --8<-- [start:alone]
def alone(function: Any, *arguments: str) -> list[str]:
    """The command for a process that has a function's text, PyTorch, and no path to our source."""
    texts = "\n".join(inspect.getsource(each) for each in (later_call, function))
    text = f"import sys\nfrom collections.abc import Callable\n{texts}\n{function.__name__}(*sys.argv[1:])"
    return [sys.executable, "-I", "-c", text, *arguments]


# --8<-- [end:alone]


def reports_no_source() -> None:
    """For a process of its own: can it import what the package was made from?"""
    import importlib.util

    print("snippets" if importlib.util.find_spec("snippets") else "nothing of ours")


# --8<-- [start:before]
def too_early(package: str) -> None:
    """Call a package without weights before it has any."""
    import torch

    model = torch._inductor.aoti_load_package(package)
    model(torch.ones(1, 16, device=model.get_metadata()["AOTI_DEVICE_KEY"]))


# --8<-- [end:before]


def weights_apart(lost: Path, served: Path, first: Head, model: Served, saved: Path) -> None:
    """What is in the packages, and what `load_constants` takes."""
    x = torch.randn(1, 16, device=DEVICE)
    package = torch._inductor.aoti_load_package(str(lost))
    print(f"needs: {', '.join(sorted(package.get_constant_fqns()))}")
    # --8<-- [start:swap]
    for head in (first, second := Head().to(DEVICE)):
        package.load_constants(head.state_dict(), check_full_update=True)
        torch.testing.assert_close(package(x), head(x))
    # --8<-- [end:swap]
    print("two checkpoints loaded, one after the other: each gives the results of its model")
    state = second.state_dict()
    for what, given in {
        "one is missing": {name: value for name, value in state.items() if name != "linear.bias"},
        "a name too many": {**state, "linear.other": state["linear.bias"]},
    }.items():
        print(f"{what:<22}{constants_error(package, given)}")
    whole = torch._inductor.aoti_load_package(str(served))
    baked = sorted(set(model.state_dict()) - set(whole.get_constant_fqns()))
    print(f"the served package has all but {', '.join(baked)}")
    print(f"{'all of its weights':<22}{constants_error(whole, model.state_dict())}")
    early = run_alone(too_early, str(lost), folder=saved)
    ended = signal.Signals(-early.returncode).name if early.returncode < 0 else f"status {early.returncode}"
    print(f"{'called without any':<22}{ended}")


def constants_error(package: Any, given: dict[str, Tensor]) -> str:
    try:
        package.load_constants(given, check_full_update=True)
    except RuntimeError as error:
        said = re.sub(r".* (API call failed) at .*", r"\1", str(error).splitlines()[0])
        return f"{type(error).__name__}: {said}"
    return "loaded"


def contents(path: Path) -> None:
    """The files of a package, with their hashes left out, and for which machine it is."""
    wrapper = ""
    with zipfile.ZipFile(path) as package:
        for entry in package.infolist():
            _, _, name = entry.filename.partition("/")
            folder, _, file = name.rpartition("/")
            kind = re.sub(r"^c[a-z2-7]{50,}", "*", file)
            print(f"{entry.file_size / 1e3:>9.1f} KB  {folder + '/' if folder else ''}{kind}")
            if kind == "*.wrapper.cpp":
                wrapper = package.read(entry).decode()
    print(f"compiled for this machine's processor: {'yes' if '-march=native' in wrapper else 'no'}")
    metadata = torch._inductor.aoti_load_package(str(path)).get_metadata()
    for key in ("AOTI_PLATFORM", "AOTI_MACHINE", "AOTI_DEVICE_KEY", "AOTI_CPU_ISA", "AOTI_COMPUTE_CAPABILITY"):
        print(f"{key}: {metadata[key] or '-'}")


# --8<-- [start:across]
def across(package: Path, other: str) -> str:
    """Load the package with another Python, which may have another version of PyTorch, and call it."""
    code = (
        "import sys, torch\n"
        "model = torch._inductor.aoti_load_package(sys.argv[1])\n"
        "x = torch.load(sys.argv[2]).to(model.get_metadata()['AOTI_DEVICE_KEY'])\n"
        "torch.save(model(x).cpu(), sys.argv[3])\n"
        "print(torch.__version__)"
    )
    given, returned = package.with_name("given.pt"), package.with_name("across.pt")
    command = [other, "-I", "-c", code, str(package), str(given), str(returned)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


# --8<-- [end:across]


def starts(folder: Path, weights: str, files: list[str], server: str, expected: Tensor) -> dict[str, float]:
    """The table of what a start costs, each in processes of its own; the seconds in all.

    Args:
        files: the package, an input, and where the result goes.
    """
    source = [sys.executable, "-m", "snippets.compiler.ahead_of_time"]
    compiles, serves = [*source, "compile", weights, *files[1:]], alone(serve, *files)
    ways = {  # what is run, where, and with which cache folder: the second time it is warm
        "eager": ([*source, "eager", weights, *files[1:]], ROOT, "none"),
        "torch.compile, cold": (compiles, ROOT, "compile"),
        "torch.compile, warm": (compiles, ROOT, "compile"),
        "package, cold": (serves, folder, "package"),
        "package, warm": (serves, folder, "package"),
        "package, bare": (alone(serve, *files, "bare"), folder, "bare"),
        "package, C++": ([server, *files], folder, "server"),
    }
    heads = (*STAGES, "in all", "later call", "agrees")
    print(f"{f'{LAYERS} layers':<22}" + "".join(f"{head:>12}" for head in heads))
    in_all = {}
    for what, (command, where, cache) in ways.items():
        stages, later = started(command, where, folder / cache)
        in_all[what] = sum(stages.values())
        cells = "".join(f"{seconds:>10.2f} s" for seconds in (*stages.values(), in_all[what]))
        print(f"{what:<22}{cells} {later * 1e3:>8.3f} ms {close(folder / 'returned.pt', expected):>11}")
    return in_all


def main(other: str = sys.executable) -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(1) as pool:
        folder = Path(name)
        compiled = pool.submit(compile_server, folder)
        package, lost = folder / "model.pt2", folder / "lost.pt2"
        given, weights = folder / "given.pt", folder / "weights.pt"
        model, x = make_model(), make_input(3)
        torch.save(model.state_dict(), weights)
        torch.save(x.cpu(), given)
        with torch.inference_mode():
            expected = model(x).cpu()
        began = time.time()
        build(model, package)
        built = time.time() - began
        head = Head().to(DEVICE)
        torch.save(head.state_dict(), folder / "head.pt")
        build_lost(head, lost)

        print("==== starts")
        files = [str(package), str(given), str(folder / "returned.pt")]
        in_all = starts(folder, str(weights), files, str(compiled.result()), expected)

        print("==== tried")
        for cache in ("package", "bare", "server"):
            print(f"{cache:<12}compiled while loading: {len(list((folder / cache).rglob('*.so')))} programs")
        done = run_alone(serve, *files, folder=folder, PATH="/nonexistent", TORCHINDUCTOR_CACHE_DIR=str(folder / "no"))
        said = re.search(r"\] (Loading .*)", done.stderr)
        result = close(folder / "returned.pt", expected)
        print(f"{'no compiler':<12}agrees: {result}   warning: {said[1] if said else 'none'}")

        print("==== exercises")
        print(f"{'building the package':<22}{built:>10.2f} s, once")
        for what in ("torch.compile, cold", "torch.compile, warm"):
            saved = in_all[what] - in_all["package, warm"]
            paid = f"paid back after {math.ceil(built / saved)} starts" if saved > 0 else "never paid back"
            print(f"{what:<22}{paid}")

        print("==== contents")
        contents(package)

        print("==== without source")
        print(f"the process can import: {run_alone(reports_no_source, folder=folder).stdout.strip()}")

        for section, variables in (("unchecked", {}), ("checked", {"AOTI_RUNTIME_CHECK_INPUTS": "1"})):
            print(f"==== {section}")
            done = run_alone(wrong_inputs, str(lost), str(folder / "head.pt"), folder=folder, **variables)
            print(done.stdout.strip() or done.stderr)

        print("==== weights")
        with torch.inference_mode():
            weights_apart(lost, package, head, model, folder)
        print("==== across")
        print(f"built with torch {torch.__version__}, loaded with torch {across(package, other)}")
        print(f"agrees: {close(folder / 'across.pt', expected)}")


if __name__ == "__main__":
    if sys.argv[1:2] in (["eager"], ["compile"]):
        serve_source(*sys.argv[1:])
    else:
        main(*sys.argv[1:])
