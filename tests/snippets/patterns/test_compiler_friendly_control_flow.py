"""What the rewrites of control flow promise, and what they give up."""

import random

import torch

from snippets.patterns.compiler_friendly import rewrite
from snippets.patterns.compiler_friendly_control_flow import Loop, loop_after, until_after, until_before


def test_fixed_steps_are_enough_or_say_so():
    scores = 3 * torch.randn(4, 8, 8)
    assert torch.equal(until_after(scores, 200), until_before(scores))
    assert (until_after(scores, 1).sum(-1) - 1).abs().max() > 1e-2


def test_what_is_done_stays_as_it_is():
    scores = torch.randn(4, 8, 8)
    assert torch.equal(until_after(scores, 40), until_after(scores, 80))


def test_a_loop_around_a_compiled_step_has_the_gradients_of_the_whole():
    module, x = Loop(8), torch.randn(2, 5, 8)
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


def test_random_is_left_seeded_as_the_first_side_needs_it():
    pair = rewrite("drop")
    pair.forget()
    drawn = random.random()
    pair.forget()
    assert random.random() == drawn
