"""Copies of most logits before a loss."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snippets.validation.assistant.found import find
from snippets.validation.assistant.rewrites import Rewritten
from tests.snippets.validation.planted.seen import DEVICE, faults, recorded

pytestmark = pytest.mark.usefixtures("one_core")
VOCABULARY = 2000


class Of(nn.Module):
    """A function of hidden states and labels, with a projection to logits."""

    def __init__(self, function):
        super().__init__()
        self.function, self.head = function, nn.Linear(32, VOCABULARY)

    def forward(self, x, labels):
        return self.function(self, x, labels)


def found_in(function):
    torch.manual_seed(0)
    labels = torch.randint(0, VOCABULARY, (2, 128), device=DEVICE)
    module, inputs = Of(function), (torch.randn(2, 128, 32, device=DEVICE), labels)
    found = faults(find(*recorded(lambda: (module, *inputs))))
    found = [one for one in found if one.title.startswith("A slice of the logits")]
    for one in found:
        torch.testing.assert_close(Rewritten(module, one.rewrites)(*inputs), module(*inputs))
    return found


def contiguous(m, x, labels):
    kept = m.head(x)[:, :-1, :].contiguous()
    return F.cross_entropy(kept.view(-1, VOCABULARY), labels[:, 1:].reshape(-1))


def reshaped(m, x, labels):
    kept = m.head(x)[:, :-1]
    return F.cross_entropy(kept.reshape(-1, VOCABULARY), labels[:, 1:].flatten())


def in_fp32(m, x, labels):
    logits = m.head(x).double()
    kept = logits[..., :-1, :].clone()
    return F.nll_loss(kept.log_softmax(-1).flatten(0, 1), labels[:, 1:].flatten())


def returned(m, x, labels):
    logits = m.head(x)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), logits


def with_a_loss_of_all(m, x, labels):
    logits = m.head(x)
    z = logits.logsumexp(-1).square().mean()
    return z + F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), labels[:, 1:].flatten())


FOUND = {contiguous: True, reshaped: True, in_fp32: False, returned: False, with_a_loss_of_all: False}


@pytest.mark.parametrize("function", FOUND, ids=lambda one: one.__name__)
def test_a_slice_of_logits_is_taken_before_the_projection(function):
    (one,) = found_in(function)
    assert bool(one.rewrites) == FOUND[function]
    read = function in (returned, with_a_loss_of_all)
    assert one.change.startswith("shift the labels" if read else "slice what linear reads")


def before(m, x, labels):
    return F.cross_entropy(m.head(x[:, :-1]).flatten(0, 1), labels[:, 1:].reshape(-1))


def padded(m, x, labels):
    moved = F.pad(labels[:, 1:], (0, 1), value=-100)
    return F.cross_entropy(m.head(x).flatten(0, 1), moved.flatten())


def of_classes(m, x, labels):
    kept = m.head(x)[..., :-1].contiguous()
    return F.cross_entropy(kept.view(-1, VOCABULARY - 1), labels.clamp(max=VOCABULARY - 2).flatten())


def transposed(m, x, labels):
    return F.cross_entropy(m.head(x)[:, :-1].mT, labels[:, 1:])


def of_chosen_words(m, x, labels):
    logits = m.head(x)
    return logits[:, :-1].contiguous().log_softmax(-1).gather(2, labels[:, 1:, None]), logits


def routed(m, x, labels):
    return m.head(x)[:, 1:].reshape(-1, VOCABULARY).softmax(-1)


LEFT_ALONE = before, padded, of_classes, transposed, of_chosen_words, routed


@pytest.mark.parametrize("function", LEFT_ALONE, ids=lambda one: one.__name__)
def test_other_logits_are_left_alone(function):
    assert not found_in(function)
