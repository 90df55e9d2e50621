"""The block, assembled from the parts of any level, is the same function."""

import pytest
import torch

from snippets.patterns.compare_levels import compare
from snippets.patterns.transformer_block import BLOCK

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def problems(component, dtype: torch.dtype, shape: tuple[int, ...], compile_it: bool) -> dict[str, str]:
    torch.manual_seed(0)
    functions = {str(n): make() for n, make in component.levels.items() if n != 3 or compile_it}
    inputs = component.inputs(shape, dtype, DEVICE)
    # on some CPUs PyTorch's fused attention is less exact than its softmax: there it is the yardstick
    fused = component.name == "attend" and dtype == torch.float32 and DEVICE.type == "cpu"
    yardstick = "1" if fused else str(component.yardstick)
    found = compare(functions, inputs, component.gradients, component.reference, yardstick, rounds=0)
    assert len(found.lines) == len(functions)
    return {line.name: line.problem for line in found.lines if line.problem}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_all_levels_of_the_block_agree(dtype: torch.dtype) -> None:
    assert not problems(BLOCK, dtype, BLOCK.shapes["tiny"], compile_it=dtype == torch.float32)
