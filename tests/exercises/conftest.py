"""Whose code is tested: that of the file after --mine, or the solutions.

python -m pytest tests/exercises --mine my_kernels.py
"""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.benchmarks.source import ROOT


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--mine", type=Path, metavar="FILE", help="your file (default: the solutions of the site)")


@pytest.fixture(scope="module")
def mine(request: pytest.FixtureRequest) -> ModuleType:
    """The reader's file as a module. A run of all tests does not know the option: there it is the solutions.

    A file that has nothing of what the exercises of a page ask for was written for those of another page.
    """
    solved = solutions(request.path)
    path = request.config.getoption("mine", None) or solved
    if not path.is_file():
        pytest.exit(f"--mine: no such file: {path}", returncode=2)
    spec = importlib.util.spec_from_file_location("mine", path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not vars(module).keys() & re.findall(r"^(?:def|class) (\w+)", solved.read_text(), re.MULTILINE):
        pytest.skip(f"{path} is for other exercises")
    return module


def solutions(test: Path) -> Path:
    """For tests/exercises/test_first_kernel.py that is snippets/kernels/first_kernel_solutions.py."""
    (path,) = (ROOT / "snippets").rglob(f"{test.stem.removeprefix('test_')}_solutions.py")
    return path


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
