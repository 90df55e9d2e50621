"""The blocks are what their names say, and the tool finds in each what the page speaks of."""

import copy

import pytest
import torch
from torch import nn

from snippets.patterns import fusion_blocks
from snippets.patterns.fusion_blocks import BLOCKS, ResNetBlock, UNetBlock, ViTBlock, folded
from snippets.patterns.fusion_candidates import find
from tests.benchmarks.captures import sections

SMALL = {ResNetBlock: ((2, 64, 32, 32),), ViTBlock: ((2, 128, 128),), UNetBlock: ((2, 64, 32, 32), (2, 64))}


def made(kind):
    torch.manual_seed(0)
    model = ViTBlock(128, 2) if kind is ViTBlock else kind(64)
    return model.eval(), [torch.randn(shape) for shape in SMALL[kind]]


@pytest.mark.parametrize("kind", SMALL)
def test_a_block_keeps_the_shape_and_has_a_residual(kind):
    model, inputs = made(kind)
    with torch.no_grad():
        y = model(*inputs)
        assert y.shape == inputs[0].shape
        far = model(inputs[0] + 100, *inputs[1:])
    assert float((far - y).median()) > 50


def names(kind, training=False):
    model, inputs = made(kind)
    return {(one.how, *(each.name for each in one.operations)) for one in find(model.train(training), *inputs)[1]}


def test_what_is_found_in_each():
    norm = "native_batch_norm"
    assert ("epilogue", "convolution", norm, "add", "relu") in names(ResNetBlock)
    training = names(ResNetBlock, training=True)
    assert ("vertical", norm, "add", "relu") in training and not any(one[0] == "epilogue" for one in training)
    assert {("one product", "addmm", "addmm", "addmm"), ("epilogue", "addmm", "gelu")} < names(ViTBlock)
    assert ("vertical", "mul", "add", "native_layer_norm") in names(ViTBlock)
    assert ("vertical", "native_group_norm", "silu") in names(UNetBlock)


def test_norms_folded_into_the_convolutions_compute_the_same():
    model, inputs = made(ResNetBlock)
    for norm in (model.norm1, model.norm2, model.norm3):
        nn.init.uniform_(norm.running_mean, -0.5, 0.5)
        nn.init.uniform_(norm.running_var, 0.5, 1.5)
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        assert torch.allclose(folded(model)(*inputs), model(*inputs), atol=1e-4)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_folded_or_not_the_vertical_fusions_leave_the_same_bytes():
    model, inputs = made(ResNetBlock)
    left = []
    for one in (model, folded(model)):
        every, found = find(one, *inputs)
        left.append(sum(each.bytes for each in every) - sum(each.saved for each in found if each.how == "vertical"))
    assert left[0] == pytest.approx(left[1], rel=1e-3)


def test_the_script_prints_what_the_page_shows(script):
    printed = script(fusion_blocks.__name__).stdout
    assert list(sections(printed)) == ["ResNet, training", "ResNet", "ResNet, folded", "ViT", "U-Net"]
    assert set(BLOCKS) == {"ResNet", "ViT", "U-Net"}
