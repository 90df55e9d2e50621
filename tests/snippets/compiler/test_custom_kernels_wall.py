"""That an operator is a wall: what stands before it and after it is a kernel by itself, and each tensor moves again."""

import pytest

from snippets.compiler import custom_kernels_wall as wall
from snippets.compiler.custom_kernels import DEVICE, WAYS, written_out

ROWS, COLUMNS = 64, 256
SIZE = 4 * ROWS * COLUMNS
SHOWN = [name for name in WAYS if DEVICE.type == "cuda" or name not in wall.SEEN]


def test_written_out_the_block_is_one_kernel_that_moves_three_tensors():
    (launch,) = wall.calls(written_out, ROWS, COLUMNS)
    assert "fused_add" in launch.name and "silu" in launch.name
    assert launch.bytes / SIZE == pytest.approx(3, abs=0.1)  # and the weight, and a number for each row


@pytest.mark.parametrize("name", SHOWN)
def test_around_an_operator_there_are_two_kernels_and_seven_tensors_move(name: str):
    before, operator, after = wall.calls(WAYS[name], ROWS, COLUMNS)
    assert "fused_add" in before.name and "silu" not in before.name
    assert "rms" in operator.name and "fused" not in operator.name
    assert "fused_silu" in after.name
    assert sum(launch.bytes for launch in (before, operator, after)) / SIZE == pytest.approx(7, abs=0.1)
