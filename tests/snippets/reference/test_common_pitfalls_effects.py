"""Hooks and seeds where the compiler looks after them."""

import torch
from torch import nn

from snippets.reference.common_pitfalls_breaks import compiled, make_x


def test_a_late_hook_is_seen_where_hooks_are_guarded():
    calls: list[int] = []
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
        fast = compiled(module)
        fast(make_x())
        module[0].register_forward_hook(lambda *_: calls.append(1))
        fast(make_x())
    assert len(calls) == 1


def test_compiled_numpy_draws_from_torch():
    import numpy

    fast = compiled(lambda x: x + torch.from_numpy(numpy.random.randn(8)).float())
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        results.append(fast(make_x()))
    assert torch.equal(*results)
