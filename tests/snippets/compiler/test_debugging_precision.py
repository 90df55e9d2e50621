"""The gate, and the tolerances that assert_close applies."""

import pytest
import torch

from snippets.compiler.debugging_precision import gate
from tests.snippets.compiler.test_debugging_symptoms import sections


def test_the_six_steps_of_the_gate_are_six():
    graph = torch.fx.symbolic_trace(gate).graph
    assert sum(node.op.startswith("call") for node in graph.nodes) == 6


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_tolerances_are_those_that_assert_close_applies(dtype, script):
    row = next(line for line in sections(script)["tolerances"].splitlines() if line.startswith(str(dtype)[6:]))
    rtol = float(row.split()[2])
    one = torch.full((1,), 1024.0, dtype=torch.float64)  # beside which atol is nothing
    torch.testing.assert_close((one * (1 + rtol / 2)).to(dtype), one.to(dtype))
    with pytest.raises(AssertionError, match="Tensor-likes are not"):
        torch.testing.assert_close((one * (1 + 4 * rtol)).to(dtype), one.to(dtype))
