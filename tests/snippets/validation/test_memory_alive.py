"""What keeps a graph alive, and what the last step's logits cost."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from snippets.validation.memory import peak_of, record
from snippets.validation.memory_alive import growth, repeated, stored, summed
from snippets.validation.memory_predicted import stand_in

pytestmark = pytest.mark.usefixtures("one_core")


def test_a_summed_loss_keeps_a_graph_only_if_no_backward_freed_it(small_model):
    model, batch = small_model
    steady, growing = {}, {}
    for backward in (True, False):
        for detach in (True, False):
            *_, last = growth(summed(model, batch, backward, detach))
            (growing if last > 0.01 else steady)[backward, detach] = last
    assert set(growing) == {(False, False)}  # validation without no_grad, the loss summed with its graph
    with torch.no_grad():
        assert growth(summed(model, batch, backward=False, detach=False))[-1] == 0


def test_a_stored_output_keeps_its_graph_and_a_detached_one_itself(small_model):
    model, batch = small_model
    whole, alone = (growth(stored(model, batch, detach)) for detach in (False, True))
    (rows, length), width = batch[0].shape, 32
    assert alone[-1] == pytest.approx(3 * rows * length * width * 4 / 1e6)
    assert whole[-1] > 10 * alone[-1]


def test_the_last_steps_logits_count_in_inference_only():
    with FakeTensorMode():
        model, batch = stand_in()
        peaks = {}
        for training in (True, False):
            for drop in (True, False):
                run = lambda how=(training, drop): repeated(model, batch, *how)  # noqa: E731
                history = record(run, model)
                peaks[training, drop] = peak_of(history).nbytes
    assert peaks[True, True] == peaks[True, False]
    assert peaks[False, True] < peaks[False, False]
