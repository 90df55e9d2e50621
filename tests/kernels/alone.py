"""What only processes of their own can show of the kernel files: that each stands alone, and works as a copy.

For all files at once, since most of the time that a process takes goes into the start of torch and Triton.
"""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from tests.kernels.promises import Promises

ROOT = Path(__file__).parents[2]
KERNELS = sorted(path.stem for path in (ROOT / "kernels").glob("*.py") if path.stem != "__init__")
# of the promises, those that read little and together reach every function of a file
SUBSET = "(empty or touched or refused or checkpointing or opcheck or wrong_input) and not (alone or counted)"
CALL = """
import importlib, json, sys, torch
answers = {}
for file, functions in json.loads(sys.argv[1]).items():
    sys.path.insert(0, file)
    for name, shapes in functions.items():
        try:
            kernel = importlib.reload(importlib.import_module(file))
            getattr(kernel, name)(*(torch.ones(shape) for shape in shapes))
            answers[f"{file}.{name}"] = "no error"
        except Exception as error:
            answers[f"{file}.{name}"] = f"{type(error).__name__}: {error}"
    sys.path.remove(file)
    sys.modules.pop(file, None)
print(json.dumps(answers))
"""


def public_functions() -> dict[str, dict[str, list[list[int]]]]:
    """By file: each function that makes promises, and shapes that it takes."""
    modules = [importlib.import_module(f"tests.kernels.test_{name}") for name in KERNELS]
    tested = [value for module in modules for name, value in vars(module).items() if name.startswith("Test")]
    found: dict[str, dict[str, list[list[int]]]] = {name: {} for name in KERNELS}
    for promises in [cls() for cls in tested if issubclass(cls, Promises) and cls is not Promises]:
        arguments = promises.public(promises.make((2, 8), torch.float32, torch.device("cpu")))
        found[promises.kernel.__name__.split(".")[-1]][promises.name] = [list(t.shape) for t in arguments]
    return found


def copy(name: str, folder: Path) -> None:
    """A kernel's file; of one in CUDA C++, both."""
    shutil.copy(ROOT / "kernels" / f"{name}.py", folder)
    if name.endswith("_cuda"):
        shutil.copy(ROOT / "kernels" / f"{name.removesuffix('_cuda')}.cu", folder)


def called_on_a_cpu(folder: Path) -> dict[str, str]:
    """What each public function answers in a process that compiles, not interprets, and sees its file alone."""
    for name in KERNELS:
        (folder / name).mkdir()
        copy(name, folder / name)
    done = subprocess.run(
        [sys.executable, "-I", "-c", CALL, json.dumps(public_functions())],
        cwd=folder, env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tested_as_copies(folder: Path) -> subprocess.CompletedProcess[str]:
    """A subset of the kernels' tests, on copies of their files; each test's name holds that of its file."""
    for name in KERNELS:
        copy(name, folder)
    files = [f"tests/kernels/test_{name}.py" for name in KERNELS]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfEp", "--durations=0", *files, "-k", SUBSET],
        cwd=ROOT, env={**os.environ, "RIDGEPOINT_KERNELS": str(folder)}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
