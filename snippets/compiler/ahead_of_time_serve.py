"""A server that needs PyTorch, a package and an input, run in a process that cannot import the model."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snippets.compiler.compile_time_measured import environment


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
