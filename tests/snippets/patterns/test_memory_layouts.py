"""Which operations copy, and in which layout results lie."""

import pytest
import torch

from snippets.patterns import memory_layouts
from snippets.patterns.memory_layouts import HEADS, SHAPES
from snippets.patterns.memory_moved import passes

COPIES = {
    "x.transpose(1, 2).flatten(2)": 2.0,
    "x.transpose(1, 2).contiguous()": 2.0,
    "x.repeat(2, 1, 1, 1)": 3.0,
    "x[torch.arange(len(x))]": 2.0,
    "torch.cat(x.chunk(2, -1), -1)": 2.0,
    "x.bfloat16()": 1.5,
    "x.clone()": 2.0,
}  # the others are views


@pytest.mark.parametrize("name", SHAPES)
def test_a_copy_reads_and_writes_and_a_view_moves_nothing(name: str):
    x = torch.randn(HEADS)
    assert passes(SHAPES[name], x) == pytest.approx(COPIES.get(name, 0.0), abs=0.001)
    results = SHAPES[name](x)
    shares = [
        y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        for y in torch.utils._pytree.tree_leaves(results)
    ]
    assert all(shares) == (name not in COPIES)


def test_sdpa_leaves_its_result_as_the_projections_lie_so_merging_heads_is_a_view():
    results = dict(memory_layouts.attentions())
    assert passes(memory_layouts.merged, results["written out"]) == 2.0
    assert passes(memory_layouts.merged, results["SDPA"]) == 0.0


def test_weights_decide_the_layout_and_flattening_pays_for_it():
    found = {}
    for format_ in (torch.contiguous_format, torch.channels_last):
        model = memory_layouts.Image().to(memory_format=format_)
        found[format_] = {name: rest for name, *rest in memory_layouts.layouts(model, torch.randn(2, 3, 8, 8))}
    plain, last = found.values()
    assert {layout for layout, _ in plain.values() if not layout.startswith("(")} == {"contiguous"}
    images = ("first", "position + x", "x + position", "cat", "second")
    assert all(last[name] == ["channels last", []] for name in images)
    assert plain["head"][1] == [] and last["head"][1] == ["aten.clone.default"]
    assert last["tokens"][0].endswith("(1024, 16, 1)"), "the channels of a pixel are neighbours"


@pytest.mark.parametrize("weights_last", [False, True])
@pytest.mark.parametrize("input_last", [False, True])
def test_weights_or_input_in_channels_last_are_enough(weights_last: bool, input_last: bool):
    formats = [torch.channels_last if last else torch.contiguous_format for last in (input_last, weights_last)]
    x, weight = (torch.randn(16, 16, 8, 8).to(memory_format=each) for each in formats)
    result = torch.nn.functional.conv2d(x, weight[:, :, :3, :3].contiguous(memory_format=formats[1]), padding=1)
    expected = "channels last" if weights_last or input_last else "contiguous"
    assert memory_layouts.layout(result) == expected
