"""Autocast keeps copies of the model's weights."""

import torch

from snippets.compiler.training_model import small
from snippets.compiler.training_step import loss_of


def test_eager_autocast_keeps_copies_of_the_weights_too():
    model, batch = small(length=16, width=32, vocabulary=64)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        loss_of(model, *batch)
    copied = {tuple(sorted(t.shape)) for t in saved if t.dtype == torch.bfloat16}
    weights = [model.head, *(getattr(model.blocks[0], name) for name in ("qkv", "out", "up", "down"))]
    assert {tuple(sorted(module.weight.shape)) for module in weights} <= copied
