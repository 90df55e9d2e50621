"""snippets/compiler/torchscript.py: scripted is the same; what the page says goes wrong does; each move is equal."""

import io
import warnings

import pytest
import torch
from torch import Tensor, nn

from snippets.compiler import torchscript
from snippets.compiler.torchscript import COMPONENTS, first_calls, halved_if_large
from snippets.compiler.torchscript_refused import scripted, warned
from snippets.validation.equivalence import compare
from tests.benchmarks.compiler.torchscript import inputs_of

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")


class Scaler(nn.Module):
    """A module as people script it: with a weight, a constant and a second method."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.factor = nn.Parameter(torch.full((4,), 3.0)), 2.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * self.factor

    def inverse(self, x: Tensor) -> Tensor:
        return x / (self.weight * self.factor)


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_component_scripted_computes_the_same(name):
    torch.manual_seed(0)
    inputs, others = inputs_of(name, 8, 128, CPU, torch.float32), (2,) if name == "block" else ()
    function = COMPONENTS[name]
    exact = function(*(t.double() if t.is_floating_point() else t for t in inputs), *others)
    call = scripted(function)
    for _ in range(3):  # the executor changes its mind twice
        assert compare(call(*inputs, *others), function(*inputs, *others), exact).holds


@pytest.mark.parametrize("make", [torch.jit.script, torch.jit.trace])
def test_both_entrances_say_that_they_are_deprecated_and_what_to_take(make):
    arguments = (
        (torchscript.norm,) if make is torch.jit.script else (torchscript.norm, (torch.ones(2, 2), torch.ones(2)))
    )
    (said,) = [line for line in warned(make, *arguments) if "is deprecated" in line]
    assert said.startswith(("DeprecationWarning", "FutureWarning"))  # the second from torch 2.15 on
    assert "torch.compile" in said and "torch.export" in said


def test_a_trace_keeps_the_branch_that_it_saw_and_says_so_only_in_a_warning():
    small, large = torch.ones(4), torch.full((4,), 8.0)
    with pytest.warns(torch.jit.TracerWarning, match="might cause the trace to be incorrect"):
        traced = torch.jit.trace(halved_if_large, small, check_trace=False)
    assert torch.equal(traced(small), halved_if_large(small))
    assert not torch.equal(traced(large), halved_if_large(large)), "the other branch is lost"
    assert torch.equal(scripted(halved_if_large)(large), halved_if_large(large))
    assert torch.equal(torch.compile(halved_if_large, backend="eager")(large), halved_if_large(large))


def test_the_first_calls_are_timed_one_by_one():
    seen = []
    seconds = first_calls(lambda x: seen.append(x), torch.ones(1), calls=3)
    assert len(seen) == len(seconds) == 3 and all(second >= 0 for second in seconds)


@pytest.fixture
def module():
    return Scaler().eval()


def test_script_and_compile(module):
    x = torch.randn(3, 4)
    assert torch.equal(scripted(module)(x), torch.compile(module, backend="aot_eager")(x))


def test_trace_and_export(module):
    x = torch.randn(3, 4)
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    assert torch.equal(scripted(module, x)(x), exported.module()(x))
    more = torch.randn(5, 4)
    assert torch.equal(exported.module()(more), module(more))


def test_save_and_load(module, tmp_path):
    x, buffer = torch.randn(3, 4), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(scripted(module), buffer)
        buffer.seek(0)
        before = torch.jit.load(buffer)(x)
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "scaler.pt2")
    assert torch.equal(before, torch.export.load(tmp_path / "scaler.pt2").module()(x))


def test_a_second_method_is_a_module_of_its_own(module):
    class Inverse(nn.Module):
        def __init__(self, scaler: Scaler):
            super().__init__()
            self.scaler = scaler

        def forward(self, x):
            return self.scaler.inverse(x)

    x = torch.randn(3, 4)
    exported = torch.export.export(Inverse(module), (x,)).module()
    assert torch.equal(exported(x), module.inverse(x))


def test_freezing_and_inference(module):
    x = torch.randn(3, 4)
    with torch.no_grad():
        frozen = torch.jit.freeze(scripted(module))
        compiled = torch.compile(module, backend="aot_eager", options=None)
        assert torch.equal(frozen(x), compiled(x))
