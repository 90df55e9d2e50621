"""Settings: what somebody's module changes is put back."""

import pytest
import torch
from torch import nn

from snippets.validation.assistant import analyze
from tests.snippets.validation.assistant.state import global_state

pytestmark = pytest.mark.usefixtures("one_core")


def state_of(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


class Stateful(nn.Module):
    """Counts, keeps running statistics, changes a setting, prints, and has hooks and gradients."""

    def __init__(self):
        super().__init__()
        self.fc, self.norm, self.calls = nn.Linear(8, 8), nn.BatchNorm1d(8), 0

    def forward(self, x):
        self.calls += 1
        print("forward")
        torch.set_float32_matmul_precision("high")
        return self.norm(self.fc(x))


@pytest.mark.parametrize("training", [True, False])
def test_the_callers_module_inputs_and_settings_stay_as_they_were(training, capsys):
    module = Stateful().train(training)
    counted = []
    module.register_forward_hook(lambda *_: counted.append(1))
    module(torch.randn(4, 8)).sum().backward()
    torch.set_float32_matmul_precision("highest")
    capsys.readouterr()
    x = torch.randn(4, 8, requires_grad=True)
    before, kept, version = state_of(module), x.detach().clone(), x._version
    gradients = {name: one.grad.clone() for name, one in module.named_parameters()}
    hooks, around = dict(module._forward_hooks), global_state()
    analyze(module, x)
    assert global_state() == around
    assert module.calls == 1 and module.training == training and module._forward_hooks == hooks
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(torch.equal(one.grad, gradients[name]) for name, one in module.named_parameters())
    assert torch.equal(x, kept) and x._version == version and x.grad is None
    assert capsys.readouterr().out == ""


class SetsByTheNewName(nn.Module):
    def forward(self, x):
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        return torch.mm(x, x)


def test_precision_that_was_set_by_the_new_name_stays():
    """Where both names were used, the old one cannot even be read."""
    matmul = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision(), matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        analyze(SetsByTheNewName(), torch.randn(256, 256))
        assert matmul.fp32_precision == "tf32"
    finally:
        torch.set_float32_matmul_precision(before[0])
        matmul.fp32_precision = before[1]


class Unchecked(nn.Module):
    def forward(self, x):
        torch.distributions.Distribution.set_default_validate_args(False)
        return x * 2


def test_distributions_check_their_arguments_as_before():
    """Dynamo turns the checks of a whole process off."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.distributions.Distribution, "_validate_args", True)
        analyze(Unchecked(), torch.randn(4))
        assert torch.distributions.Distribution._validate_args is True
