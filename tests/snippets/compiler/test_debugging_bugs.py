"""Each planted bug is found where it is, and is none where the line that is wrong is right."""

import pytest
import torch
from torch._inductor import compiler_bisector

from snippets.compiler.debugging import bisect, call, inside
from snippets.compiler.debugging_bugs import BUGS, make_x, padded
from snippets.compiler.debugging_bugs_compiler import shifted_beside
from snippets.compiler.debugging_precision import gate
from tests.snippets.compiler.test_debugging_symptoms import OLD, VERSION, known, sections

VARIES = {"memory": r"\d+ of 64|compared with \w+ +"}  # nobody wrote it: see tests/benchmarks/captures.py

CROSSREF = "aot_eager_decomp_partition_crossref"
FIRST = {  # by bug: the first wrong stage, and a part of what is said of it
    "healthy": ("", ""),
    "shape": ("eager", "output 0: error"),
    "mutation": ("eager, operators as declared", "planted::scale_ writes to x, which its schema does not declare"),
    "decomposition": ("aot_eager_decomp_partition", "output 0: error"),
    "dtype": (CROSSREF, "Dtypes torch.float64 and torch.float32 are not equal!"),
    "stride": (CROSSREF, "Stride mismatch! Strides are (1, 8) and (4, 1)"),
    "pass": ("inductor", "output 0: error"),
    "lowering": ("inductor", "output 0: error"),
    "memory": ("eager again, NaN in fresh memory", "are NaN or infinite"),
}
OTHERWISE = {"stride": ("inductor", "expected size 8==8, stride 1==4 at dim=0")} if OLD else {}
INSIDE = {
    "decomposition": "aot_eager_decomp_partition, decomposition: <OpOverload(op='planted.halve', overload='default')>",
    "pass": "inductor, post_grad_passes: post_grad_custom_post_pass",
}


def test_the_page_has_every_bug():
    assert list(FIRST) == ["healthy", *BUGS]


@known
@pytest.mark.parametrize("name", FIRST)
def test_each_is_found_at_its_stage(name, script):
    first, words = OTHERWISE.get(name, FIRST[name])
    found = sections(script, "bugs")[name]
    assert (f"first wrong: {first}" if first else "no stage is wrong") in found.splitlines()
    assert words in found
    if name in INSIDE:
        assert f"inside: {INSIDE[name]}" in found


@pytest.fixture
def only(monkeypatch):
    """`only(part, ...)`: these parts of Inductor can be switched off, and no other stage is there."""

    def limit(*parts):
        monkeypatch.setattr(compiler_bisector, "BACKENDS", {"eager": [], "inductor": list(parts)})

    return limit


def test_a_lowering_of_a_custom_operator_cannot_be_switched_off(only):
    only(compiler_bisector.BisectSubsystem("lowerings"))
    assert inside(shifted_beside, make_x()) == "inductor, a part that cannot be switched off"


@pytest.mark.skipif(VERSION not in ("2.13", "2.14"), reason="does not round on a CPU, or not quite as eager")
def test_rounding_is_accused_by_a_comparison_of_bits_and_not_by_float64(only):
    only(compiler_bisector.ConfigChange("inductor", "emulate_precision_casts", True))
    x = make_x().bfloat16()

    def bits() -> bool:
        return torch.equal(call(gate, (x,), compiler_bisector.CompilerBisector.get_backend())["output 0"], gate(x))

    found = compiler_bisector.CompilerBisector.do_bisect(bits)
    assert found.subsystem == "inductor_emulate_precision_casts"
    assert inside(gate, x) == "no stage is wrong"


def test_memory_that_is_written_is_not_blamed(monkeypatch):
    real = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size: real(*size).zero_())
    assert len(bisect(padded, make_x()).rows) > 1
