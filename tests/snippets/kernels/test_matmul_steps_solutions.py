"""Each solution passes the tests of its exercise (tests/exercises runs them), and a fault of a usual kind does not."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from snippets.kernels import matmul_steps_solutions
from tests.exercises import test_matmul_steps as exercises
from tests.exercises.test_first_kernel import loops
from tests.snippets.kernels.test_first_kernel import DEVICE

SOURCE = Path(matmul_steps_solutions.__file__).read_text()


def planted(tmp_path: Path, old: str, new: str) -> ModuleType:
    """The solutions with one fault."""
    assert SOURCE.count(old) == 1, old
    path = tmp_path / "faulty.py"
    path.write_text(SOURCE.replace(old, new))
    spec = importlib.util.spec_from_file_location("faulty", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def one(mine: ModuleType, device: torch.device) -> None:
    exercises.test_one_the_order_of_tiles(mine, 5, 3, 2, device)


def two(mine: ModuleType, device: torch.device) -> None:
    for shape in ((33, 16, 32), (32, 17, 32), (32, 16, 33)):
        exercises.test_two_any_size(mine, shape, device)


def three(mine: ModuleType, device: torch.device) -> None:
    for programs in (4, 9):
        exercises.test_three_any_number_of_programs(mine, programs, device)


@loops
@pytest.mark.parametrize(
    ("tests", "old", "new"),
    (
        pytest.param(one, "min(down - first, GROUP)", "GROUP", id="the last group is full"),
        pytest.param(one, "of_group // rows, program)", "of_group // GROUP, program)", id="columns of a full group"),
        pytest.param(two, "mask=inside_a, other=0.0", "mask=(rows < M)[:, None], other=0.0", id="a is read on"),
        pytest.param(two, "mask=inside_b, other=0.0", "mask=(cols < N)[None, :], other=0.0", id="b is read on"),
        pytest.param(two, "c, mask=inside)", "c)", id="store without a mask"),
        pytest.param(
            three,
            "c = tl.zeros([BM, BN], tl.float32)  # anew",
            "c = c if tile != tl.program_id(0) else tl.zeros([BM, BN], tl.float32)  #",
            id="on top of the tile before",
        ),
        pytest.param(three, "tl.load(bias_ptr + cols)[None, :]", "tl.load(bias_ptr + rows)[:, None]", id="by rows"),
        pytest.param(three, "M // BM * across, tl", "tl.num_programs(0), tl", id="one tile a program"),
        pytest.param(three, ", 0.0)\n        tl.store", ", -1e9)\n        tl.store", id="no relu"),
    ),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # inf times 0
def test_a_fault_is_found(tests, old, new, tmp_path):
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        tests(planted(tmp_path, old, new), torch.device(DEVICE))
