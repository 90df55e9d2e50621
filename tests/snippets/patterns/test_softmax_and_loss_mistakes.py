"""Ways to mask and to write a loss: what is right, and where the others fail."""

import math

import torch

from snippets.patterns.softmax_and_loss_mistakes import (
    LOSSES,
    MASKS,
    NONE,
    SCORES,
    SOME,
    after_the_softmax,
    log_of_softmax,
    log_softmax,
    loss_and_gradient,
    minus_1e9,
    minus_10,
    minus_infinity,
    smallest_number,
    weights,
)


def test_three_masks_are_the_softmax_of_what_is_kept() -> None:
    expected = torch.softmax(SCORES[SOME], -1)
    for mask in (minus_infinity, smallest_number, minus_1e9):
        torch.testing.assert_close(mask(SCORES, SOME)[SOME], expected)
    for mask in (minus_10, after_the_softmax):
        assert not torch.allclose(mask(SCORES, SOME)[SOME], expected, atol=0.05)


def test_a_row_of_which_nothing_is_kept() -> None:
    assert minus_infinity(SCORES, NONE).isnan().all()
    torch.testing.assert_close(smallest_number(SCORES, NONE), torch.full((4,), 0.25))


def test_a_billion_is_no_number_of_fp16() -> None:
    assert weights(minus_1e9, SOME, torch.float16) == "RuntimeError"
    assert weights(smallest_number, SOME, torch.float16) == weights(smallest_number, SOME)


def test_the_logarithm_of_a_probability_of_zero() -> None:
    loss, gradient = loss_and_gradient(log_of_softmax)
    assert math.isinf(loss)
    assert math.isnan(gradient)
    assert loss_and_gradient(log_softmax) == (150, -1)


def test_the_script_prints_all(script) -> None:
    lines = script("snippets.patterns.softmax_and_loss_mistakes").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [each.__name__ for each in (*MASKS, *LOSSES)]
