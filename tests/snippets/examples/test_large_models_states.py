"""States have their bytes, and bf16 ones stall where the page says so."""

import pytest
import torch
from torch import nn

pytest.importorskip("torchao", reason="a development dependency: constraints.txt names its version")

from snippets.examples import large_models_change, large_models_states


def test_states_have_the_bytes_that_are_said() -> None:
    for states in ("fp32", "bf16", "8 bit"):
        p = nn.Parameter(torch.randn(64, 256))
        p.grad = torch.randn_like(p)
        optimizer = large_models_states.optimizer_of([p], states)
        with torch.compiler.set_stance("force_eager"):
            optimizer.step()
        held = [t for state in optimizer.state.values() for t in state.values() if t.numel() > 1]
        count = sum(t.codes.nbytes + t.scale.nbytes if states == "8 bit" else t.nbytes for t in held)
        assert count == large_models_change.STATES[states] * p.numel(), states


def test_bf16_states_stall_where_beta2_is_near_one() -> None:
    """What the page warns of: a change below half a unit in the last place is lost, however often it comes."""
    for beta2, arrives in ((0.95, True), (0.999, False)):
        v = torch.ones((), dtype=torch.bfloat16)
        for _ in range(5000):
            v.copy_(v.float().lerp(torch.tensor(1.5), 1 - beta2))
        assert (abs(float(v) - 1.5) < 0.1) == arrives
