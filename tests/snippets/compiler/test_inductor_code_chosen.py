"""A launch is described as the tool for compiled code takes it."""

import json
from types import SimpleNamespace

import pytest

from snippets.compiler import inductor_code_chosen
from snippets.compiler.inductor_code_chosen import Refused


def autotuner(**different: object) -> SimpleNamespace:
    """What Inductor's launcher of a kernel has, as far as it is looked at."""
    config = SimpleNamespace(num_warps=4, num_stages=1)
    parameters = [SimpleNamespace(name=name, is_constexpr=name.isupper()) for name in ("in_ptr0", "n", "one", "XBLOCK")]
    meta = {
        "signature": {"in_ptr0": "*bf16", "n": "i32", "one": "constexpr", "XBLOCK": "constexpr"},
        "constants": {"one": 1, "XBLOCK": 256},
        "configs": [{(0,): [["tt.divisibility", 16]]}],
    }
    kernel = SimpleNamespace(
        fn=SimpleNamespace(params=parameters, arg_names=[parameter.name for parameter in parameters]),
        launchers=[SimpleNamespace(config=config, n_regs=40, n_spills=2, shared=16)],
        compile_results=[None, None],
        _create_compile_meta=lambda config: meta,
        _create_compile_options=lambda config, meta: {"num_warps": 4, "debug": True, "other": object()},
    )
    vars(kernel).update(different)
    return kernel


def test_a_launch_is_described_as_the_tool_for_compiled_code_takes_it():
    described = inductor_code_chosen.chosen(autotuner())
    assert described == {
        "signature": ["*bf16:16", "i32", "i32:1", "256"],
        "constants": {"one": 1, "XBLOCK": 256},
        "options": {"num_warps": 4, "debug": True},
        "tried": 2,
        "registers": 40,
        "spilled": 8,
        "shared": 16,
    }
    assert json.loads(json.dumps(described)) == described


@pytest.mark.parametrize(
    "different",
    [{"launchers": []}, {"launchers": [1, 2]}, {"_create_compile_meta": lambda config: {}}, {"fn": None}],
    ids=["never launched", "undecided", "no signature", "no function"],
)
def test_a_launcher_that_does_not_tell_is_refused(different):
    with pytest.raises(Refused, match="does not tell how it launches"):
        inductor_code_chosen.chosen(autotuner(**different))


def test_an_argument_folded_to_another_value_is_refused():
    kernel = autotuner()
    kernel._create_compile_meta(None)["constants"]["one"] = 7
    with pytest.raises(Refused, match="one: expected a constexpr, None or 1, got 7"):
        inductor_code_chosen.chosen(kernel)
