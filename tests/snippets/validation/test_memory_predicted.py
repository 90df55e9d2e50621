"""What each remedy gives back at the peak, predicted for the large model without a GPU."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from snippets.validation.memory import record, saved
from snippets.validation.memory_predicted import REMEDIES, predicted, stand_in
from snippets.validation.memory_remedies import Model, in_parts, sdpa
from snippets.validation.memory_step import adam, loss_in_fp32, loss_of, train_step

pytestmark = pytest.mark.usefixtures("one_core")

TWO = REMEDIES["SDPA, loss in parts"]


@pytest.fixture(scope="module")
def plain() -> int:
    return predicted({}).nbytes


def test_what_each_remedy_gives_back(plain):
    peaks = {name: predicted(remedies).nbytes for name, remedies in REMEDIES.items()}
    assert peaks["nothing"] == plain == peaks["ReLU in place"]  # in place gives nothing back at the peak
    assert peaks["SDPA, loss in parts"] < peaks["blocks checkpointed"] < peaks["SDPA"] < peaks["loss in parts"] < plain
    assert predicted({}, loss_of=loss_in_fp32).nbytes < plain  # scores are kept in fp32 under autocast, too, and a copy
    alone = REMEDIES["SDPA"]
    assert predicted(alone, loss_of=loss_in_fp32).nbytes > peaks["SDPA"]


def test_remedies_move_the_peak_and_then_the_optimizer_counts():
    checkpointed = {**TWO, "checkpointed": True}
    assert predicted(TWO).by == "backward, temporary"
    assert predicted(TWO, fused=True).nbytes == predicted(TWO).nbytes  # the peak is elsewhere
    late, fused = predicted(checkpointed, foreach=True), predicted(checkpointed, fused=True)
    assert late.by == "optimizer, temporary" and fused.by == "backward, temporary"
    assert predicted(checkpointed, early=True, fused=True).nbytes < fused.nbytes < late.nbytes


def test_a_prediction_is_what_the_real_step_does():
    """On a small model both ways: without data, and counted while it computes."""
    counts = []
    for fake in (False, True):
        with FakeTensorMode(allow_non_fake_inputs=True) if fake else torch.enable_grad():
            m = Model(layers=2, width=32, heads=2, vocabulary=64)
            tokens = torch.zeros(2, 16, dtype=torch.long)
            optimizer = adam(m.parameters(), foreach=True)
            history = record(lambda m=m, t=tokens, o=optimizer: train_step(m, o, t, t), m, optimizer)
            counts.append([(block.nbytes, block.who) for _, block in history.events if block])
    assert counts[0] == counts[1]


def test_relu_in_place_keeps_as_much():
    with FakeTensorMode():
        kept = []
        for in_place in (False, True):
            model, batch = stand_in(in_place=in_place)
            kept.append(sum(t.nbytes for t in saved(model, lambda m=model, b=batch: loss_of(m, *b))))
    assert kept[0] == kept[1]


def test_sdpa_keeps_no_scores_and_parts_no_logits():
    def shapes(**remedies: object) -> set[tuple[int, ...]]:
        with FakeTensorMode():
            model, batch = stand_in(**remedies)
            return {tensor.shape for tensor in saved(model, lambda: loss_of(model, *batch))}

    scores, logits = (4, 16, 2048, 2048), (8192, 32768)
    assert {scores, logits} <= shapes()
    assert scores not in shapes(attention=sdpa)
    assert logits not in shapes(loss=in_parts)
