"""Every strategy computes the same block."""

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from snippets.compiler.recompilation_counter import Counter
from snippets.compiler.recompilation_diary import multiple_of_64
from snippets.compiler.recompilation_strategies import (
    LONGEST,
    STRATEGIES,
    Weights,
    block,
    bucket,
    make_weights,
    prompt_lengths,
)
from snippets.validation.equivalence import check


def scores(x: torch.Tensor) -> torch.Tensor:
    return (x @ x.mT).softmax(-1)


def small_weights() -> Weights:
    torch.manual_seed(0)
    return make_weights(32, torch.device("cpu"), torch.float32)


def test_lengths_are_many_mostly_short_and_always_the_same():
    lengths = prompt_lengths(500)
    assert lengths == prompt_lengths(500) and prompt_lengths(20) == lengths[:20]
    assert 150 < sum(lengths) / 500 < 170  # the mean that the page states
    assert min(lengths) >= 2 and max(lengths) <= LONGEST
    assert len(set(lengths)) > 8 * 8


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_computes_the_block(strategy):
    function, call, options = STRATEGIES[strategy]
    weights = small_weights()
    exact = Weights(*(getattr(weights, name).double() for name in ("qkv", "out", "up", "down")), heads=weights.heads)
    torch.compiler.reset()
    compiled = torch.compile(function, backend="eager", **options)
    for length in (17, 5):
        x = torch.randn(1, length, 32)
        results = {"output": call(compiled, x.clone(), weights)}
        check(results, {"output": block(x, weights)}, {"output": block(x.double(), exact)})


def test_an_unbacked_block_refuses_a_length_of_1():
    function, call, _ = STRATEGIES["unbacked"]
    torch.compiler.reset()
    compiled = torch.compile(function, backend="eager")
    with torch.inference_mode(), pytest.raises(AssertionError):
        call(compiled, torch.randn(1, 1, 32), small_weights())


def test_a_batch_and_a_length_that_both_change_need_two_graphs():
    """Marked both; a batch of 1 is a constant, so it stays unmarked and has a graph of its own."""
    compiled = torch.compile(scores, backend=(counter := Counter()))
    for batch, length in ((4, 30), (1, 30), (8, 700), (1, 64), (32, 5), (2, 2000), (1, 9)):
        x = torch.randn(batch, length, 16)
        torch._dynamo.mark_dynamic(x, 1, min=2, max=2048)
        if batch > 1:
            torch._dynamo.mark_dynamic(x, 0, min=2, max=32)
        compiled(x)
    assert counter.compiled == 2


def test_a_marked_batch_of_1_is_an_error():
    torch._dynamo.mark_dynamic(x := torch.randn(1, 30, 16), 0, min=2, max=32)
    with pytest.raises(ConstraintViolationError, match="marked"):
        torch.compile(scores, backend="eager")(x)


def test_a_causal_block_does_not_see_what_is_padded_behind():
    weights, x = small_weights(), torch.randn(1, 20, 32)
    behind = torch.cat([x, torch.randn(1, 12, 32)], dim=1)
    torch.testing.assert_close(block(behind, weights)[:, :20], block(x, weights))


def test_a_bucket_is_the_next_power_of_two():
    assert [bucket(length) for length in (2, 16, 17, 128, 129, 1000)] == [16, 16, 32, 128, 256, 1024]
    assert [multiple_of_64(length) for length in (1, 64, 65, 1024)] == [64, 64, 128, 1024]
