"""Whose code is tested: that of the file after --mine, or the solutions.

python -m pytest tests/exercises/test_first_kernel.py --mine my_kernels.py
"""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.benchmarks.source import ROOT


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mine", type=Path, metavar="FILE", help="your file (default: the solutions of the site)")


@pytest.fixture(scope="module")
def mine(request: pytest.FixtureRequest) -> ModuleType:
    """The reader's file as a module. A run of all tests does not know the option: there it is the solutions."""
    path = request.config.getoption("mine", None) or solutions(request.path)
    if not path.is_file():
        pytest.exit(f"--mine: no such file: {path}", returncode=2)
    spec = importlib.util.spec_from_file_location("mine", path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def solutions(test: Path) -> Path:
    """For tests/exercises/test_first_kernel.py that is snippets/kernels/first_kernel_solutions.py."""
    (path,) = (ROOT / "snippets").rglob(f"{test.stem.removeprefix('test_')}_solutions.py")
    return path


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
