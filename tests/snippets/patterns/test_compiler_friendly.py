"""Both sides of each rewrite compute the same, for more than the inputs that the page counts."""

import random
from itertools import pairwise

import pytest
import torch

from snippets.patterns import compiler_friendly
from snippets.patterns.compiler_friendly import (
    CALLS,
    TEN,
    CacheAfter,
    CacheBefore,
    CacheUncounted,
    Counter,
    ExpertsAfter,
    ExpertsBefore,
    TableAfter,
    answer,
    exercise,
    loop_after,
    outputs,
    positions_after,
    positions_before,
    rewrite,
    select_after,
    select_before,
    twins,
    until_after,
    until_before,
)

SIZES = ((2, 8), (8, 32))


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    bounds = {"rtol": 0.02, "atol": 0.02} if one.dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(other, one, **bounds)


@pytest.mark.parametrize(("rows", "width"), SIZES)
@pytest.mark.parametrize("name", TEN)
def test_both_sides_compute_the_same_at_every_call(name, rows, width):
    first, second = outputs(rewrite(name, rows, width))
    assert len(first) == len(second) == CALLS
    for one, other in zip(first, second, strict=True):
        close(one, other)


@pytest.mark.parametrize("name", TEN)
def test_the_calls_differ_so_that_a_result_kept_from_before_is_found_out(name):
    first, _ = outputs(rewrite(name))
    assert all(one.shape != other.shape or not torch.equal(one, other) for one, other in pairwise(first))


@pytest.mark.parametrize("name", TEN)
def test_a_second_pass_begins_anew(name):
    pair = rewrite(name)
    for one, again in zip(outputs(pair), outputs(pair), strict=True):
        for x, y in zip(one, again, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=0)


@pytest.mark.parametrize("name", TEN)
def test_captured_the_rewrite_is_still_what_the_first_side_is(name):
    def compile(function):
        return torch.compile(function, backend="eager", fullgraph=True)

    torch.compiler.reset()
    pair = rewrite(name)
    first, _ = outputs(pair)
    pair.forget()
    call, inputs = pair.after(compile)
    with torch.no_grad():
        for one, arguments in zip(first, inputs, strict=True):
            close(one, pair.common(call(*arguments)))


# ---- what each rewrite promises, and what it gives up ---------------------------------------------------------------


def test_a_cache_that_keeps_its_length_does_not_look_at_places_that_are_not_written():
    module = CacheAfter(2, 6, 8)
    with torch.no_grad():
        module.keys.fill_(1e3), module.values.fill_(1e3)
        x = torch.randn(2, 1, 8)
        expected = module.kv(x).chunk(2, -1)[1]  # of one token, attention is its value
        torch.testing.assert_close(module(x, torch.tensor([0])), expected)


@pytest.mark.parametrize("above", [0, 1, 7])
def test_boxes_are_selected_whatever_their_number(above):
    scores = torch.linspace(0.6, 0.9, 7) - torch.where(torch.arange(7) < above, 0.0, 0.5)
    boxes = torch.randn(7, 4)
    best, valid = select_after(boxes, scores, 7)
    assert valid.sum() == above
    torch.testing.assert_close(best[valid], select_before(boxes, scores))


def test_too_few_places_lose_boxes_and_the_mask_shows_it():
    boxes, scores = torch.randn(8, 4), torch.linspace(0.6, 0.9, 8)
    best, valid = select_after(boxes, scores, 3)
    assert valid.all()  # all places are taken: there may be more
    torch.testing.assert_close(best, select_before(boxes, scores)[:3])


def test_an_expert_without_tokens_is_no_trouble():
    before, after = twins(ExpertsBefore(4, 16).bfloat16(), ExpertsAfter(4, 16).bfloat16(), "cpu")
    for module in (before, after):
        torch.nn.init.zeros_(module.router.weight)
        torch.nn.init.constant_(module.router.bias, 0)
        with torch.no_grad():
            module.router.bias[2] = 1
    x = torch.randn(8, 16).bfloat16()
    with torch.no_grad():
        close(before(x), after(x))


def test_fixed_steps_are_enough_or_say_so():
    scores = 3 * torch.randn(4, 8, 8)
    assert torch.equal(until_after(scores, 200), until_before(scores))
    assert (until_after(scores, 1).sum(-1) - 1).abs().max() > 1e-2


def test_what_is_done_stays_as_it_is():
    scores = torch.randn(4, 8, 8)
    assert torch.equal(until_after(scores, 40), until_after(scores, 80))


def test_a_loop_around_a_compiled_step_has_the_gradients_of_the_whole():
    module, x = compiler_friendly.Loop(8), torch.randn(2, 5, 8)
    grads = []
    for call in (module, loop_after(module, lambda step: step)):
        module.zero_grad()
        call(x).square().sum().backward()
        grads.append([p.grad.clone() for p in module.parameters()])
    torch.testing.assert_close(*grads)


def test_about_half_of_the_layers_is_left_out():
    pair = rewrite("drop")
    _, inputs = pair.after(lambda function: function)
    kept = torch.stack([gates for _, gates in inputs])
    assert set(kept.flatten().tolist()) == {0.0, 1.0} and 0.25 < kept.mean() < 0.75


def test_a_row_longer_than_the_table_is_an_error_not_nonsense():
    with pytest.raises(RuntimeError):
        TableAfter(8, 4)(torch.randn(1, 5, 8))


def test_positions_begin_anew_at_each_offset_and_rows_may_be_empty():
    table = torch.arange(6.0)[:, None]
    offsets = torch.tensor([0, 2, 2, 6])
    found = positions_after(torch.zeros(6, 1), offsets, table)
    assert found.flatten().tolist() == [0, 1, 0, 1, 2, 3]
    torch.testing.assert_close(found, positions_before(torch.zeros(6, 1), offsets, table))


def test_random_is_left_seeded_as_the_first_side_needs_it():
    pair = rewrite("drop")
    pair.forget()
    drawn = random.random()
    pair.forget()
    assert random.random() == drawn


def test_the_answer_is_the_mean_over_real_tokens_whatever_stands_behind_them():
    x, lengths = torch.randn(3, 6, 4), torch.tensor([1, 4, 6])
    expected = exercise(x, lengths)
    x[0, 1:] = torch.nan
    torch.testing.assert_close(answer(x, lengths), expected)


@pytest.mark.parametrize("calls", [2, 5])
def test_a_cache_without_its_integer_is_the_same_cache(calls):
    before, after = CacheBefore(8), CacheUncounted(8)
    after.load_state_dict(before.state_dict())
    for x in torch.randn(calls, 2, 1, 8):
        torch.testing.assert_close(after(x), before(x))


def test_a_counter_that_nothing_reads_counts():
    module = Counter()
    module(torch.ones(2)), module(torch.ones(2))
    assert module.calls == 2


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the page says so of torch 2.13")
def test_a_compiled_grouped_product_takes_bf16_only():
    torch.compiler.reset()
    module = torch.compile(ExpertsAfter(4, 16), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match="BF16"):
        module(torch.randn(8, 16))
