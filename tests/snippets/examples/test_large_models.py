"""By hand as counted, on a CPU: each part, each moment's sum at sizes of a GPU; and each change trains as before."""

import functools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import large_models
from snippets.examples.large_models import EACH, LLAMA_1B, LLAMA_3B, LLAMA_8B, SMALL, Change
from snippets.examples.llama import make_model
from snippets.validation.memory import allocated, peak_of
from tests.benchmarks.source import ROOT

SHAPE = large_models.shape_of(SMALL)
TOKENS = torch.randint(SHAPE.words, (4, 48), generator=torch.Generator().manual_seed(0))
EAGER = [change for change in EACH.values() if change.budget is None and change.states == "fp32"]


@functools.cache
def model() -> nn.Module:
    torch.manual_seed(0)
    return make_model(SMALL, torch.device("cpu"), torch.float32)


def gradients(change: Change) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, and each gradient as an optimizer would get it."""
    found: dict[str, Tensor] = {}
    hooks = [
        p.register_post_accumulate_grad_hook(lambda p, name=name: found.__setitem__(name, p.grad.clone()))
        for name, p in model().named_parameters()
    ]
    try:
        loss = large_models.changed(model(), change)(TOKENS)
        loss.backward()
    finally:
        for hook in hooks:
            hook.remove()
        model().zero_grad()
    return loss.detach(), found


@pytest.mark.parametrize(("sizes", "billions"), [(LLAMA_1B, 1.236), (LLAMA_3B, 3.213), (LLAMA_8B, 8.030)])
def test_the_shapes_are_those_of_llama(sizes: dict, billions: float) -> None:
    assert large_models.shape_of(sizes).parameters / 1e9 == pytest.approx(billions, abs=1e-3)


@pytest.mark.parametrize("rows", [4, 2], ids=["any shape", "a weight's shape"])
def test_each_part_is_predicted_to_the_byte_or_nearly(rows: int) -> None:
    tokens = TOKENS.repeat(1, 2)[:rows, : 48 if rows == 4 else 64]
    plain, count = Change(), tokens.numel()
    assert (count == SMALL["intermediate_size"]) == (rows == 2)
    found = large_models.counted(model(), lambda: large_models.changed(model(), plain)(tokens))
    by_hand = large_models.moments(SHAPE, count, plain)
    kept = by_hand["loss, backward"]
    assert SHAPE.parameters == sum(p.numel() for p in model().parameters())
    assert found["copies"] == kept["copies"] and found["loss"] == 4 * count * SHAPE.words
    assert found["activations"] == pytest.approx(kept["activations"], rel=0.02)  # beside tokens and rotary tables
    assert by_hand["optimizer"]["gradients"] == sum(p.nbytes for p in model().parameters())


def test_what_was_counted_is_freed() -> None:
    """Also the result of an operation that keeps it for its own backward."""
    results = []

    def forward() -> torch.Tensor:
        result = model().lm_head.weight.exp()
        results.append(result.untyped_storage()._weak_ref())
        return result

    assert sum(large_models.counted(model(), forward).values())
    assert torch.UntypedStorage._expired(results[0])


@pytest.mark.parametrize("budget", [1.0, 0.9])
def test_what_compiled_blocks_keep_is_predicted(budget: float) -> None:
    """By the compiler's cut alone: code is not generated."""
    cut = functools.partial(torch.compile, backend="aot_eager_decomp_partition")
    torch.compiler.reset()
    with mock.patch.object(torch, "compile", cut), torch._functorch.config.patch(activation_memory_budget=budget):
        loss_of = large_models.changed(model(), Change(budget=budget))
        found = large_models.counted(model(), lambda: loss_of(TOKENS))
    torch.compiler.reset()
    kept = large_models.moments(SHAPE, TOKENS.numel(), Change(budget=budget))["loss, backward"]
    both = ("copies", "activations")  # this compiler keeps a copy as it is, and not transposed
    assert sum(found[part] for part in both) == pytest.approx(sum(kept[part] for part in both), rel=0.02)


@pytest.mark.parametrize("name", ["as it comes", "bf16 states", "gradients released", "loss in chunks", "loss fused"])
def test_peaks_by_hand_are_those_counted(name: str) -> None:
    """A tiny model's temporaries weigh more than a large one's: within a tenth."""
    peak = large_models.measured(model(), TOKENS, EACH[name]).peak
    assert large_models.predicted(SHAPE, TOKENS.numel(), EACH[name])[1] == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["as it comes", "loss in chunks", "checkpoints, chunks", "and no autocast cache"])
def test_peaks_by_hand_are_those_of_the_allocator(name: str, tied: bool) -> None:
    """Many words, as in a Llama: the sums of lm_head's gradient weigh most. A count of tensors has one sum too many."""
    sizes = SMALL | {"vocab_size": 16384, "hidden_size": 128, "tie_word_embeddings": tied}
    s, change = large_models.shape_of(sizes), EACH[name]
    change = replace(change, rows=min(change.rows, 64))
    many = make_model(sizes, torch.device("cpu"), torch.float32)
    tokens = torch.randint(s.words, (4, 96))
    with large_models.trained(many, change) as (step, _):
        step(tokens)
        found = peak_of(allocated(lambda: step(tokens))).nbytes + 12 * s.parameters  # weights and states are there
    assert large_models.predicted(s, tokens.numel(), change)[1] == pytest.approx(found, rel=0.01)


def test_states_have_the_bytes_that_are_said() -> None:
    for states in ("fp32", "bf16", "8 bit"):
        p = nn.Parameter(torch.randn(64, 256))
        p.grad = torch.randn_like(p)
        optimizer = large_models.optimizer_of([p], states)
        with torch.compiler.set_stance("force_eager"):
            optimizer.step()
        held = [t for state in optimizer.state.values() for t in state.values() if t.numel() > 1]
        count = sum(t.codes.nbytes + t.scale.nbytes if states == "8 bit" else t.nbytes for t in held)
        assert count == large_models.STATES[states] * p.numel(), states


@pytest.mark.parametrize("change", EAGER, ids=str)
def test_each_change_has_the_plain_gradients(change: Change) -> None:
    loss, found = gradients(change)
    expected_loss, expected = gradients(Change())
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=0)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        unit = expected[name].abs().max() / 2**7  # of bf16, which rounds what the chunks add in another order
        bound = 2 * unit if change.fused else unit if change.rows else 0  # the fused loss rounds its logits, too
        assert (gradient - expected[name]).abs().max() <= bound, name


def test_small_chunks_add_up_to_the_whole_loss() -> None:
    torch.manual_seed(1)
    x, weight = (torch.randn(rows, 8, requires_grad=True) for rows in (21, 30))
    target = torch.randint(30, (21,)).index_fill(0, torch.tensor([3, 20]), -100)
    whole = nn.functional.cross_entropy(x @ weight.T, target)
    parts = large_models.loss_in_chunks(x, weight, target, 4)
    torch.testing.assert_close(parts, whole)
    for found, expected in zip(*(torch.autograd.grad(loss, (x, weight)) for loss in (parts, whole)), strict=True):
        torch.testing.assert_close(found, expected)


def stepped(change: Change, steps: int = 3) -> list[Tensor]:
    """The weights after some steps, from the same start."""
    before = [p.detach().clone() for p in model().parameters()]
    try:
        with large_models.trained(model(), change) as (step, _):
            for _ in range(steps):
                step(TOKENS)
        return [p.detach().clone() for p in model().parameters()]
    finally:
        with torch.no_grad():
            for p, start in zip(model().parameters(), before, strict=True):
                p.copy_(start)


@pytest.mark.parametrize(
    ("change", "bound"),
    [
        (Change(release=True), 0.0),
        (Change(states="CPU"), 1e-3),
        (Change(states="CPU", release=True), 1e-3),
        (Change(states="bf16"), 0.02),
    ],
    ids=str,
)
def test_the_weights_move_as_with_adamw(change: Change, bound: float) -> None:
    """Distance by distance moved: of single weights with a gradient near zero, rounding decides."""
    start = torch.cat([p.detach().flatten() for p in model().parameters()])
    found, expected = (torch.cat([p.flatten() for p in stepped(each)]) for each in (change, Change()))
    moved = (expected - start).norm()
    assert moved > 0 and (found - expected).norm() <= bound * moved


def test_released_gradients_are_gone_and_hooks_come_off() -> None:
    with large_models.trained(model(), Change(release=True)) as (step, _):
        step(TOKENS)
        assert all(p.grad is None for p in model().parameters())
    large_models.changed(model(), Change())(TOKENS).backward()
    assert all(p.grad is not None for p in model().parameters())
    model().zero_grad()


def test_bf16_states_stall_where_beta2_is_near_one() -> None:
    """What the page warns of: a change below half a unit in the last place is lost, however often it comes."""
    for beta2, arrives in ((0.95, True), (0.999, False)):
        v = torch.ones((), dtype=torch.bfloat16)
        for _ in range(5000):
            v.copy_(v.float().lerp(torch.tensor(1.5), 1 - beta2))
        assert (abs(float(v) - 1.5) < 0.1) == arrives


def pack_counting() -> tuple[list[int], Callable]:
    sizes: list[int] = []

    def hooks(**_: object) -> object:
        return torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t.nbytes), t)[1], lambda t: t)

    return sizes, hooks


@pytest.mark.parametrize("repeat", ["", "blocks"])
def test_bytes_to_the_cpu_are_predicted(repeat: str) -> None:
    change, (sizes, hooks) = Change(offload=True, repeat=repeat), pack_counting()
    with mock.patch.object(torch.autograd.graph, "save_on_cpu", hooks):
        large_models.changed(model(), change)(TOKENS)
    by_hand = SHAPE.layers * large_models.moved_by_block(SHAPE, TOKENS.numel(), change)
    assert sum(sizes) == pytest.approx(by_hand, rel=0.06)  # beside rotary tables and the norms' weights


def test_packed_documents_have_the_loss_of_padded_ones() -> None:
    documents = [torch.arange(n) * 7 % SHAPE.words for n in (5, 17, 9, 12)]
    loss_of = large_models.changed(model(), Change())
    together = large_models.packed(documents, 24)
    assert together["tokens"].shape == (2, 22) and together["position_ids"].max() == 16
    apart = large_models.padded(documents)
    assert (together["labels"] != -100).sum() == sum(map(len, documents)) - len(documents)
    torch.testing.assert_close(loss_of(**together), loss_of(**apart), rtol=3e-3, atol=0)
    merged = loss_of(together["tokens"], together["labels"])  # documents see each other
    assert abs(merged - loss_of(**apart)) > abs(loss_of(**together) - loss_of(**apart)) * 3


def test_the_largest_batch_is_the_last_that_fits() -> None:
    s, lean = large_models.shape_of(LLAMA_8B), replace(EACH["and gradients released"], states="8 bit")
    room = 78 * large_models.GIB
    rows = large_models.largest(s, room, lean, 2048)
    fits = [large_models.predicted(s, each * 2048, lean)[1] <= room for each in (rows, rows + 1)]
    assert rows > 0 and fits == [True, False] and not large_models.largest(s, room, Change(), 2048)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Change(states="int3"), "states: expected one of"),
        (lambda: Change(repeat="all"), "repeat: expected"),
        (lambda: Change(rows=-1), "rows: expected 0 or more"),
        (lambda: Change(rows=8, fused=True), "fused: expected no rows"),
        (lambda: Change(budget=0.9, offload=True), "budget: expected no repeat"),
        (lambda: large_models.packed([torch.arange(9)], 8), "length: expected at least 9"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make: Callable, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_step_that_does_not_fit_is_said_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(large_models, "seconds", full)
    assert large_models.tried(model(), TOKENS, Change(release=True)) == "out of memory"
    assert all(p.grad is None and not p._post_accumulate_grad_hooks for p in model().parameters())


def test_what_costs_no_time_is_listed_first(capsys: pytest.CaptureFixture[str]) -> None:
    large_models.ranked([("slow", 4e9, 0.4), ("free", 2e9, -0.1), ("quick", 3e9, 0.1), ("nothing", 0.0, 0.0)])
    assert [each.split()[0] for each in capsys.readouterr().out.splitlines()[1:]] == ["free", "quick", "slow"]


def test_the_errors_that_the_page_names_are_the_largest() -> None:
    """Of every peak on the record; the page shows these two."""
    record = json.loads((ROOT / "docs/measurements/captures/examples/large_models.cuda.json").read_text("utf-8"))
    printed = {each["section"]: each["content"] for each in record["sections"]}
    lines = "\n".join(printed[name] for name in ("parts 1B", "each", "parts 3B", "large")).splitlines()
    errors = {line[:34].strip(): float(found[1]) for line in lines if (found := re.search(r" ([-+]\d+\.\d) %", line))}
    assert len(errors) > len(EACH)
    assert min(errors.values()) == errors["compiled, budget 0.9"]
    assert max(errors.values()) == errors["checkpoints, chunks"]
