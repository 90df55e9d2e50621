"""Each program does what its mend does, and is slow for the reason that it stands for."""

import dataclasses
import functools
import itertools

import pytest
import torch
from torch.nn.functional import gelu

from snippets.validation import diagnosis_programs as programs
from snippets.validation.diagnosis import BUSY, CAUSES, Ceilings
from snippets.validation.diagnosis_programs import PROGRAMS, Photos, ceilings_of, examine, gain

CPU = torch.device("cpu")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_one_program_for_each_cause_that_one_gpu_has():
    assert [program.cause for program in PROGRAMS] == [
        "launching", "memory", "matrix", "loading", "copying", "waiting", "compiling",
    ]  # fmt: skip
    assert set(CAUSES) - {program.cause for program in PROGRAMS} == {"network", "starting"}


def test_what_is_fused_is_gelu():
    x = torch.randn(1000, dtype=torch.float64)
    torch.testing.assert_close(programs.gelu_by_hand(x), gelu(x, approximate="tanh"), rtol=0, atol=1e-8)


def test_products_in_bfloat16_are_those_in_float32():
    x, weights = programs.inputs(CPU, torch.float32)
    exact = programs.layers(x, weights)
    rough = programs.layers(x.bfloat16(), [weight.bfloat16() for weight in weights]).float()
    assert (rough - exact).norm() < 0.02 * exact.norm()


def test_a_photo_is_decoded_to_the_same_each_time():
    assert torch.equal(Photos()[7], Photos()[7]) and Photos()[7].shape == (4096,)


def test_a_loss_is_looked_at_each_step_or_seldom(monkeypatch):
    seen = []
    monkeypatch.setattr(programs, "print_to_nowhere", seen.append)
    monkeypatch.setattr(programs, "optimizer_like", lambda small: small)
    monkeypatch.setattr(programs, "inputs", lambda device, dtype: (torch.ones(2, 2), [torch.eye(2)]))
    for every, looks in ((1, 6), (3, 2)):
        step = programs.logged(CPU, every)
        for _ in range(6):
            step()
        assert seen == [1.0] * looks
        seen.clear()


def test_bytes_are_as_bright_as_floats():
    pixels = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(programs.brightness(pixels), programs.brightness(pixels.float()))


@pytest.mark.parametrize(("program", "graphs"), [(programs.one_graph_each, 5), (programs.one_graph_for_all, 1)])
def test_how_often_it_compiles(monkeypatch, program, graphs):
    compiled = itertools.count()
    monkeypatch.setattr(
        torch, "compile", functools.partial(torch.compile, backend=lambda graph, _: (next(compiled), graph.forward)[1])
    )
    torch.compiler.reset()
    step = program(CPU)
    for _ in range(5):
        step()
    assert next(compiled) == graphs


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
    assert 0.5 < examine(programs.in_float32(device), ceilings, few=False).works[0].ceiling < 1.2
