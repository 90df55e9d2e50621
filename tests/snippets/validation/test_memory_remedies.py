"""What each remedy gives back at the peak, that it changes no gradient, and what keeps a graph alive."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch._subclasses import FakeTensorMode

from snippets.validation.memory import peak_of, record, saved
from snippets.validation.memory_remedies import (
    REMEDIES,
    Early,
    Model,
    adam,
    explicit,
    growth,
    in_parts,
    loss_in_fp32,
    loss_of,
    predicted,
    repeated,
    sdpa,
    stand_in,
    stored,
    summed,
    train_step,
    whole,
    with_remedies,
)

TWO = REMEDIES["SDPA, loss in parts"]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The models are so small that threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def small() -> tuple[Model, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    tokens = torch.randint(64, (2, 17))
    return Model(layers=2, width=32, heads=2, vocabulary=64), (tokens[:, :-1], tokens[:, 1:])


@pytest.fixture(scope="module")
def plain() -> int:
    return predicted({}).nbytes


@pytest.mark.parametrize("name", REMEDIES)
def test_a_remedy_changes_no_gradient_and_no_parameter(name, small):
    model, batch = small
    other = with_remedies(model, **REMEDIES[name])
    assert all(mine is theirs for mine, theirs in zip(other.parameters(), model.parameters(), strict=True))
    gradients = [torch.autograd.grad(loss_in_fp32(m, *batch), list(model.parameters())) for m in (model, other)]
    torch.testing.assert_close(*gradients)


def test_stepping_early_updates_as_a_step_at_the_end(small):
    model, batch = small
    late, early = copy.deepcopy(model), copy.deepcopy(model)
    optimizers = adam(late.parameters()), Early(early)
    for m, optimizer in zip((late, early), optimizers, strict=True):
        train_step(m, optimizer, *batch, loss_in_fp32)
        assert all(p.grad is None for p in m.parameters())
    torch.testing.assert_close(list(late.parameters()), list(early.parameters()))


# ---- predictions: of the large model, without a GPU -----------------------------------------------------


def test_what_each_remedy_gives_back(plain):
    peaks = {name: predicted(remedies).nbytes for name, remedies in REMEDIES.items()}
    assert peaks["nothing"] == plain == peaks["ReLU in place"]  # in place gives nothing back at the peak
    assert peaks["SDPA, loss in parts"] < peaks["blocks checkpointed"] < peaks["SDPA"] < peaks["loss in parts"] < plain
    assert predicted({}, loss_of=loss_in_fp32).nbytes < plain  # scores are kept in fp32 under autocast, too, and a copy
    alone = REMEDIES["SDPA"]
    assert predicted(alone, loss_of=loss_in_fp32).nbytes > peaks["SDPA"]


def test_scores_are_kept_in_fp32_under_autocast_and_in_float64_for_a_reference():
    q, k, v = torch.randn(3, 1, 2, 8, 4)
    with torch.autocast("cpu", torch.bfloat16):
        kept: list[torch.dtype] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.dtype), t)[1], lambda t: t):
            found = explicit(q.requires_grad_(), k, v)
    assert found.dtype == torch.bfloat16 and torch.float32 in kept
    exact = explicit(*(t.double() for t in (q, k, v)))
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact, sdpa(*(t.double() for t in (q, k, v))), rtol=0, atol=1e-14)


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


@pytest.mark.skipif(not hasattr(torch.nn, "LinearCrossEntropyOptions"), reason="came with torch 2.13")
def test_the_loss_of_pytorch_with_its_product_makes_parts_only_if_it_is_told_to():
    x, head = torch.randn(512, 64), torch.nn.Linear(64, 1000, bias=False)
    targets = torch.randint(1000, (512,))

    def peak(loss: Callable[..., torch.Tensor], **options: object) -> int:
        head.zero_grad()
        return peak_of(record(lambda: loss(x, head.weight, targets, **options).backward(), head)).nbytes

    together = torch.nn.functional.linear_cross_entropy
    assert peak(together) == peak(whole)
    assert peak(together, options=torch.nn.LinearCrossEntropyOptions()) < 0.5 * peak(whole)


# ---- what keeps a graph ---------------------------------------------------------------------------------


def test_a_summed_loss_keeps_a_graph_only_if_no_backward_freed_it(small):
    model, batch = small
    steady, growing = {}, {}
    for backward in (True, False):
        for detach in (True, False):
            *_, last = growth(summed(model, batch, backward, detach))
            (growing if last > 0.01 else steady)[backward, detach] = last
    assert set(growing) == {(False, False)}  # validation without no_grad, the loss summed with its graph
    with torch.no_grad():
        assert growth(summed(model, batch, backward=False, detach=False))[-1] == 0


def test_a_stored_output_keeps_its_graph_and_a_detached_one_itself(small):
    model, batch = small
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
