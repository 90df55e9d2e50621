"""Whose kernels are tested: those of the file after --mine, or the solutions.

python -m pytest tests/exercises --mine my_kernels.py
"""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.benchmarks.source import ROOT

SOLUTIONS = ROOT / "snippets" / "kernels" / "first_kernel_solutions.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mine", type=Path, metavar="FILE", help="your kernels (default: the solutions of the site)")


@pytest.fixture(scope="session")
def mine(request: pytest.FixtureRequest) -> ModuleType:
    """The reader's file as a module. A run of all tests does not know the option: there it is the solutions."""
    path = request.config.getoption("mine", None) or SOLUTIONS
    if not path.is_file():
        pytest.exit(f"--mine: no such file: {path}", returncode=2)
    spec = importlib.util.spec_from_file_location("mine", path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
