"""Each kind of weights is a config of torchao, which leaves the compiler's settings."""

import pytest
import torch

pytest.importorskip("torchao", reason="a development dependency: constraints.txt names its version")

from snippets.examples import generation_torchao_weights


def test_quantizing_leaves_the_compiler_s_settings() -> None:
    """torchao's default changes them for the whole process, and all that is compiled later."""
    before = torch._inductor.config.coordinate_descent_tuning, torch.get_float32_matmul_precision()
    generation_torchao_weights.quantized(torch.randn(64, 64, dtype=torch.bfloat16), "int8")
    assert before == (torch._inductor.config.coordinate_descent_tuning, torch.get_float32_matmul_precision())
    assert before[0] is False


@pytest.mark.parametrize("kind", generation_torchao_weights.KINDS)
def test_each_kind_is_a_config_of_torchao(kind: str) -> None:
    assert (
        type(generation_torchao_weights.config_of(kind)).__name__.endswith("Config")
        and not generation_torchao_weights.config_of(kind).set_inductor_config
    )


def test_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kind: expected one of int8, int4, fp8, int8 both, got 'int3'"):
        generation_torchao_weights.config_of("int3")
