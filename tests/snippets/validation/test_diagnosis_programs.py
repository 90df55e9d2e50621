"""Each program is slow for the reason that it stands for."""

import dataclasses

import pytest
import torch

from snippets.validation.diagnosis import BUSY, CAUSES, Ceilings
from snippets.validation.diagnosis_kernels import in_float32
from snippets.validation.diagnosis_programs import PROGRAMS, ceilings_of, examine, gain

CPU = torch.device("cpu")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_one_program_for_each_cause_that_one_gpu_has():
    assert [program.cause for program in PROGRAMS] == [
        "launching", "memory", "matrix", "loading", "copying", "waiting", "compiling",
    ]  # fmt: skip
    assert set(CAUSES) - {program.cause for program in PROGRAMS} == {"network", "starting"}


def test_examine_looks_at_few_steps():
    assert examine(lambda: torch.ones(8) + 1, Ceilings(), few=True).steps == 2


@pytest.mark.parametrize("each_call_differs", (True, False))
def test_gain_is_of_both(clock, each_call_differs):
    program = dataclasses.replace(PROGRAMS[-1], each_call_differs=each_call_differs)
    found = gain(program, lambda: clock.sleep(3.0), lambda: clock.sleep(2.0), CPU)
    assert found == pytest.approx((3.0, 2.0))


@gpu
@pytest.mark.idle_gpu
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.cause)
def test_on_a_gpu_each_program_is_slow_for_its_reason(program):
    device = torch.device("cuda")
    found = examine(program.before(device), Ceilings(), program.each_call_differs)
    assert found.on_gpu
    assert found.cause == program.cause, str(found)
    assert (found.cause in BUSY) == (found.idle < 0.2)


@gpu
@pytest.mark.idle_gpu
def test_a_product_in_float32_is_near_its_ceiling():
    device = torch.device("cuda")
    ceilings = ceilings_of(device)
    assert ceilings.matrix["bfloat16"] > 4 * ceilings.matrix["float32"]
    assert 0.5 < examine(in_float32(device), ceilings, few=False).works[0].ceiling < 1.2
