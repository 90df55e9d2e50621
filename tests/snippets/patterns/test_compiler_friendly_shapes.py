"""What the rewrites with fixed shapes promise, and what they give up."""

import pytest
import torch

from snippets.patterns.compiler_friendly_pair import twins
from snippets.patterns.compiler_friendly_shapes import (
    CacheAfter,
    CacheBefore,
    CacheUncounted,
    ExpertsAfter,
    ExpertsBefore,
    select_after,
    select_before,
)
from tests.snippets.patterns.test_compiler_friendly import close


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


@pytest.mark.parametrize("calls", [2, 5])
def test_a_cache_without_its_integer_is_the_same_cache(calls):
    before, after = CacheBefore(8), CacheUncounted(8)
    after.load_state_dict(before.state_dict())
    for x in torch.randn(calls, 2, 1, 8):
        torch.testing.assert_close(after(x), before(x))


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the page says so of torch 2.13")
def test_a_compiled_grouped_product_takes_bf16_only():
    torch.compiler.reset()
    module = torch.compile(ExpertsAfter(4, 16), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match="BF16"):
        module(torch.randn(8, 16))
