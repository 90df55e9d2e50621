"""Which operations copy, in which layout results lie, what working in place refuses and what it does not."""

import pytest
import torch

from snippets.patterns import memory
from snippets.patterns.memory import HEADS, SHAPES, moved, passes

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


def test_what_is_overwritten_is_not_read():
    x, y = torch.randn(2, 8, 8)
    assert passes(lambda x: y.copy_(x), x) == 2.0
    assert passes(lambda x: x.add_(1), x) == 2.0
    assert passes(lambda x: x.add_(y), x) == 3.0
    assert not moved(torch.empty_like, x)


def test_sdpa_leaves_its_result_as_the_projections_lie_so_merging_heads_is_a_view():
    results = dict(memory.attentions())
    assert passes(memory.merged, results["written out"]) == 2.0
    assert passes(memory.merged, results["SDPA"]) == 0.0


def test_weights_decide_the_layout_and_flattening_pays_for_it():
    found = {}
    for format_ in (torch.contiguous_format, torch.channels_last):
        model = memory.Image().to(memory_format=format_)
        found[format_] = {name: rest for name, *rest in memory.layouts(model, torch.randn(2, 3, 8, 8))}
    plain, last = found.values()
    assert {layout for layout, _ in plain.values() if not layout.startswith("(")} == {"contiguous"}
    images = ("first", "position + x", "x + position", "cat", "second")
    assert all(last[name] == ["channels last", []] for name in images)
    assert plain["head"][1] == [] and last["head"][1] == ["aten.clone.default"]
    assert last["tokens"][0].endswith("(1024, 16, 1)"), "the channels of a pixel are neighbours"


def test_in_place_moves_as_much_and_compiled_it_is_the_same_kernel():
    x = torch.randn(64, 64)
    assert torch.equal(memory.apart(x), memory.in_place(x))
    assert passes(memory.apart, x) == passes(memory.in_place, x) == 6.0
    apart, in_place = memory.compiled().values()
    assert [launch.bytes for launch in apart] == [launch.bytes for launch in in_place]
    assert len(apart) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (memory.saved_output, "has been modified by an inplace operation"),
        (memory.leaf, "a leaf Variable that requires grad"),
        (memory.expanded, "more than one element of the written-to tensor"),
        (memory.one_of_several, "is a view and is being modified inplace"),
        (memory.on_the_way_to_a_gradient, "has been modified by an inplace operation"),
    ],
)
def test_what_autograd_refuses(change, says: str):
    assert change in memory.REFUSED
    assert says in memory.refusal(change)


def test_what_nothing_refuses():
    x = torch.zeros(2, 3, requires_grad=True)
    assert memory.by_data(x) == 2.0, "the gradient of exp at 0 is 1"
    assert memory.of_the_callers_tensor(x) == 5.0, "and the caller's tensor held 0"
    assert memory.refusal(lambda x: None) == "nothing"


def test_appending_by_cat_moves_all_that_is_there_at_each_step():
    steps = torch.randn(16, 8)
    for function in (memory.growing, memory.listed, memory.in_room):
        assert torch.equal(function(steps), steps)
    assert passes(memory.growing, steps) == pytest.approx(2 * sum(range(1, 17)) / 16)
    assert passes(memory.listed, steps) == passes(memory.in_room, steps) == 2.0


def test_what_a_design_keeps_for_backward():
    found = {name: memory.kept(module) for name, module in memory.designs().items()}
    assert found == pytest.approx(
        {"GELU": 9, "ReLU": 5, "ReLU in place": 5, "gated SiLU": 17, "gated SiLU, again in backward": 1}, abs=0.01
    )


def test_the_script_shows_all(script):
    done = script("snippets.patterns.memory")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("====") == 8


@pytest.mark.parametrize("weights_last", [False, True])
@pytest.mark.parametrize("input_last", [False, True])
def test_weights_or_input_in_channels_last_are_enough(weights_last: bool, input_last: bool):
    formats = [torch.channels_last if last else torch.contiguous_format for last in (input_last, weights_last)]
    x, weight = (torch.randn(16, 16, 8, 8).to(memory_format=each) for each in formats)
    result = torch.nn.functional.conv2d(x, weight[:, :, :3, :3].contiguous(memory_format=formats[1]), padding=1)
    expected = "channels last" if weights_last or input_last else "contiguous"
    assert memory.layout(result) == expected
