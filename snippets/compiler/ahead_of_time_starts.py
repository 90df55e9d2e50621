"""What a start costs: eager, compiled, from a package, and in C++, each in processes of its own."""

import importlib
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from snippets.compiler.ahead_of_time_model import LAYERS, SIZE, make_model
from snippets.compiler.ahead_of_time_serve import alone, later_call, serve
from snippets.compiler.compile_time_measured import environment

ROOT = Path(__file__).parents[2]


# --8<-- [start:source]
def serve_source(way: str, weights: str, given: str, returned: str) -> None:
    """A server from the model's source, eager or with `torch.compile`."""

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
