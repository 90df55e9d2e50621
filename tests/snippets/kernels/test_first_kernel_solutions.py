"""Each solution passes the tests of its exercise (tests/exercises runs them), and a fault of a usual kind does not."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from snippets.kernels import first_kernel_exercises, first_kernel_solutions
from tests.exercises import test_first_kernel as exercises
from tests.exercises.test_first_kernel import loops
from tests.snippets.kernels.test_first_kernel import DEVICE

SOURCE = Path(first_kernel_solutions.__file__).read_text()


def test_exercises_and_solutions_have_the_same_functions():
    def public(module: ModuleType) -> set[str]:
        return {name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}

    assert public(first_kernel_exercises) == public(first_kernel_solutions)


def planted(tmp_path: Path, old: str, new: str) -> ModuleType:
    """The solutions with one fault."""
    assert SOURCE.count(old) >= 1, old
    path = tmp_path / "faulty.py"
    path.write_text(SOURCE.replace(old, new))
    spec = importlib.util.spec_from_file_location("faulty", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def two(mine: ModuleType, device: torch.device) -> None:
    exercises.test_two_log_softmax(mine, 3, device)
    exercises.test_two_does_not_read_what_lies_behind_a_row(mine, device)
    exercises.test_two_with_large_numbers(mine, device)


def three(mine: ModuleType, device: torch.device) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for layout in ("contiguous", "transposed"):
            exercises.test_three_softmax_down_the_columns(mine, layout, device, patch)


def four(mine: ModuleType, device: torch.device) -> None:
    exercises.test_four_logsumexp_of_rows_of_any_width(mine, 129, device)
    exercises.test_four_with_large_numbers_in_any_tile(mine, device)
    exercises.test_four_where_a_row_begins_masked(mine, device)
    exercises.test_four_with_any_row_stride(mine, device)


def five(mine: ModuleType, device: torch.device) -> None:
    exercises.test_five_the_gradient(mine, 64, device)
    for layout in ("expanded", "transposed"):
        exercises.test_five_with_a_gradient_of_any_strides(mine, layout, device)


@pytest.mark.parametrize(
    ("tests", "old", "new"),
    (
        pytest.param(
            two, ', mask=inside, other=float("-inf"))\n    shifted', ")\n    shifted", id="load without a mask"
        ),
        pytest.param(two, "shifted - tl.log(total), mask=inside", "shifted - tl.log(total)", id="store without a mask"),
        pytest.param(
            two, 'mask=inside, other=float("-inf"))\n    shifted', "mask=inside, other=0.0)\n    shifted", id="0"
        ),
        pytest.param(two, "shifted = x - tl.max(x, axis=0)", "shifted = x", id="no maximum"),
        pytest.param(three, "down * row_stride", "down * columns", id="row stride"),
        pytest.param(three, "column * column_stride", "column", id="column stride"),
        pytest.param(three, "x.stride(0), x.stride(1)", "x.contiguous().stride(0), 1", id="copied"),
        pytest.param(four, "total = total * tl.exp(high - higher)", "pass", id="not moved", marks=loops),
        pytest.param(four, "-3.4028234663852886e38", 'float("-inf")', id="from -inf", marks=loops),
        pytest.param(four, "row * x_stride", "row * columns", id="stride", marks=loops),
        pytest.param(five, " * tl.sum(dy, axis=0)", "", id="no sum"),
        pytest.param(five, "cols * dy_column_stride", "cols", id="gradient's strides"),
    ),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_fault_is_found(tests, old, new, tmp_path):
    device = torch.device(DEVICE)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        tests(planted(tmp_path, old, new), device)
