"""A change takes each layer's place, or changes it in its place."""

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import multi_gpu_order_wraps
from snippets.examples.multi_gpu_order_wraps import each, tiny


def test_what_a_change_returns_takes_the_layers_place() -> None:
    model, seen = tiny(), []
    before = list(model.model.layers)
    assert list(each(model, seen.append).model.layers) == before == seen
    assert all(isinstance(layer, nn.Identity) for layer in each(model, lambda _: nn.Identity()).model.layers)


def test_a_graph_of_each_shape_is_counted() -> None:
    multi_gpu_order_wraps.GRAPHS.clear()
    doubled = multi_gpu_order_wraps.compiled(lambda x: x * 2)
    for rows in (2, 2, 3):
        doubled(torch.ones(rows))
    assert len(multi_gpu_order_wraps.GRAPHS) == 2
