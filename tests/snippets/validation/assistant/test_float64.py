"""The check against float64: what it forgives, and what it does not."""

import copy

import pytest
import torch

from snippets.validation.assistant import validate
from snippets.validation.assistant.float64 import References, checked
from snippets.validation.assistant.subject import Subject
from tests.snippets.validation.planted import fusion
from tests.snippets.validation.planted.right_changes import RIGHT

pytestmark = pytest.mark.usefixtures("one_core")


def test_an_upcast_inside_does_not_spoil_the_reference(untimed):
    """float64 stays float64 where the module says `.float()`, so a module in fp32 is right beside itself."""
    x = torch.randn(2, 16, 64)
    module = fusion.RotaryComplex()
    assert validate(module, copy.deepcopy(module), x, rounds=5).right


def test_a_gradient_that_cancels_is_judged_by_its_layer(untimed):
    """Softmax does not feel a constant, so the bias of the keys has a gradient of zero but for rounding."""
    module = fusion.AttentionWritten()
    verdict = validate(module, copy.deepcopy(module), fusion.sequence(), rounds=5)
    assert verdict.right and "gradient of qkv.bias" in {check.name for check in verdict.checks}


@pytest.mark.parametrize(
    ("coarse", "off", "holds"),
    [
        (torch.bfloat16, 1e-4, True),
        (torch.bfloat16, 5e-4, False),
        (torch.float32, 1e-4, False),
        (torch.float32, 1e-7, True),
    ],
)
def test_a_loss_is_no_yardstick_for_itself(coarse, off, holds):
    """The baseline's loss is right to the last digit by luck; its gradients tell the dtype that it was computed in."""
    exact = {"loss": torch.tensor(10.0, dtype=torch.float64), "weight.grad": torch.ones(4, dtype=torch.float64)}
    baseline = {"loss": torch.tensor(10.0), "weight.grad": torch.ones(4, dtype=coarse)}
    actual = baseline | {"loss": torch.tensor(10.0 * (1 + off))}
    assert (checked("loss", actual, baseline, exact).problem == "") == holds


@pytest.mark.parametrize("name", ["noise", "noise in place", "dropout", "a GRU whose state is torch.zeros"])
def test_float64_has_the_random_numbers_of_the_modules_own_dtype(name):
    """Else the original would have to stand for float64, and say so."""
    module, _, inputs = RIGHT[name].made()
    assert References.of(Subject(module, inputs, {})).problem == ""
