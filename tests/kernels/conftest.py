"""Where the kernels under test come from, and on which device they run."""

import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests import gpu

worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
if worker and "CUDA_VISIBLE_DEVICES" not in os.environ and (gpus := torch.cuda.device_count()) > 1:
    # several processes share the GPUs: each sees all of them, and begins with another
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str((worker + i) % gpus) for i in range(gpus))
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported


OFTEN = 700, 10, 10  # objects between two collections, as Python has it: interpreted kernels make large arrays

pytest.register_assert_rewrite("tests.kernels.promises")


def load(name: str) -> ModuleType:
    """The kernel file `name`: from kernels/, or from the folder that RIDGEPOINT_KERNELS names, and from it alone."""
    folder = os.environ.get("RIDGEPOINT_KERNELS")
    if folder is None:
        return importlib.import_module(f"kernels.{name}")
    spec = importlib.util.spec_from_file_location(name, Path(folder) / f"{name}.py")
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The row lengths, and strides, that a class of promises names."""
    if "path" in metafunc.fixturenames and hasattr(metafunc.cls, "PATHS"):
        metafunc.parametrize("path", metafunc.cls.PATHS)
    if "columns" in metafunc.fixturenames and hasattr(metafunc.cls, "held"):
        metafunc.parametrize("columns, dtype", metafunc.cls.held(), ids=str)
    if metafunc.function.__name__ == "test_any_strides_of_inputs_and_of_incoming_gradients":
        metafunc.parametrize("columns_, strides", metafunc.cls.strided())


if os.environ.get("TRITON_INTERPRET") == "1":
    from tests.kernels import interpreter

    interpreter.install()


@pytest.fixture(autouse=os.environ.get("TRITON_INTERPRET") == "1")
def overflow(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where offsets pass 2^31, a sum of integers that leaves 32 bits is an error and no wild address."""
    interpreter.watch_overflow("2_to_the_31" in request.node.name and not getattr(request.cls, "WRAPS", False))
    yield
    interpreter.watch_overflow(False)


@pytest.fixture(scope="module", autouse=True)
def collected_often() -> Iterator[None]:
    usual = gc.get_threshold()
    gc.set_threshold(*OFTEN)
    yield
    gc.set_threshold(*usual)


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests of more elements, or rows, than 32 bits count take as much of a GPU's memory as one may."""
    much = any(words in request.node.name for words in ("2_to_the_31_elements", "_counted_are_refused"))
    with gpu.room(gpu.ALL if much else 0):
        yield
