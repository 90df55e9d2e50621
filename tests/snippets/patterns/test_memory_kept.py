"""What a design keeps for backward."""

import pytest

from snippets.patterns import memory_kept


def test_what_a_design_keeps_for_backward():
    found = {name: memory_kept.kept(module) for name, module in memory_kept.designs().items()}
    assert found == pytest.approx(
        {"GELU": 9, "ReLU": 5, "ReLU in place": 5, "gated SiLU": 17, "gated SiLU, again in backward": 1}, abs=0.01
    )
