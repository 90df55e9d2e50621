"""Linear layers: every level agrees with float64, forward and backward; layouts and sizes hold the same numbers."""

import pytest
import torch
import torch.nn.functional as F

from snippets.patterns import linear
from snippets.patterns.compare_levels import compare
from snippets.patterns.linear import COMPONENTS
from tests.snippets.patterns.components import DEVICE, problems, reference_is_the_formula


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_all_levels_agree(component, dtype: torch.dtype) -> None:
    # the compiler takes a grouped product in bf16 alone; of the others one dtype is enough to compile
    to_compile = torch.bfloat16 if component.name == "experts" else torch.float32
    left_out = set() if dtype == to_compile else {3}
    found, nothing = problems(component, component.shapes["tiny"], dtype, left_out)
    assert found == nothing


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda of: of.name)
def test_the_reference_is_the_formula(component) -> None:
    reference_is_the_formula(component, component.shapes["tiny"])


def test_results_are_about_one_in_size() -> None:
    """So that neither an activation nor a bias is lost beside the product."""
    torch.manual_seed(0)
    x, weight, bias = linear.linear_gelu_inputs((256, 128), torch.float32, DEVICE).values()
    product, of_bias = F.linear(x, weight).std().item(), bias.std().item()
    assert 0.9 < product < 1.1
    assert 0.8 < of_bias < 1.2


@pytest.mark.skipif(DEVICE.type == "cpu", reason="on a CPU the private operation computes GELU with erf")
def test_the_epilogue_is_the_same_function() -> None:
    inputs = linear.linear_gelu_inputs((64, 128), torch.bfloat16, DEVICE)
    functions = {"native": linear.linear_gelu_native, "epilogue": linear.linear_gelu_epilogue}
    assert compare(functions, inputs, rounds=0).agree


def test_experts_as_a_padded_batch_are_the_same() -> None:
    inputs = linear.experts_inputs((4, 128, 64, 96), torch.float32, DEVICE)
    functions = {"loop": linear.experts_written, "padded": linear.experts_padded}
    assert compare(functions, inputs, ("x", "weight"), rounds=0).agree


def test_a_loop_over_unbind_is_the_same_and_keeps_its_gradients_small() -> None:
    inputs = linear.batched_inputs((4, 16, 64), torch.float32, DEVICE)
    functions = {"index": linear.batched_written, "unbind": linear.batched_unbound}
    assert compare(functions, inputs, ("x", "weight"), rounds=0).agree
    assert "SelectBackward0" in graph_of(linear.batched_written, inputs)
    assert "SelectBackward0" not in graph_of(linear.batched_unbound, inputs)


def graph_of(function, inputs: dict[str, torch.Tensor]) -> set[str]:
    """The names of all functions of the backward."""
    waiting = [function(*(t.requires_grad_() for t in inputs.values())).grad_fn]
    found = set()
    while waiting:
        if (node := waiting.pop()) is not None:
            found.add(node.name())
            waiting += [before for before, _ in node.next_functions]
    return found


@pytest.mark.parametrize(("experts", "tokens"), [(1, 64), (4, 128), (8, 512), (64, 32768)])
def test_groups_are_unequal_and_begin_at_multiples_of_16(experts: int, tokens: int) -> None:
    sizes = linear.uneven(experts, tokens)
    assert sum(sizes) == tokens
    assert all(size % 16 == 0 for size in sizes)
    assert all(size > 0 for size in sizes)
    assert experts == 1 or max(sizes) > 1.4 * min(sizes)


def test_layouts_hold_the_same_numbers_and_are_stored_as_their_names_say() -> None:
    x, weight = torch.randn(6, 8), torch.randn(4, 8)
    stored = linear.layouts(x, weight)
    for name, (one, other) in stored.items():
        assert torch.equal(one, x), name
        assert torch.equal(other, weight), name
    strides = {name: (one.stride(), other.stride()) for name, (one, other) in stored.items()}
    assert strides == {
        "rows-rows": ((8, 1), (8, 1)),
        "rows-columns": ((8, 1), (1, 4)),
        "columns-rows": ((1, 6), (8, 1)),
        "columns-columns": ((1, 6), (1, 4)),
        "left-half": ((16, 1), (8, 1)),
        "every-other": ((16, 2), (8, 1)),
    }


def test_a_larger_weight_adds_zeros_only() -> None:
    weight = torch.randn(50, 95)
    wide = linear.larger(weight)
    assert wide.shape == (64, 128)
    assert torch.equal(wide[:50, :95], weight)
    assert wide.count_nonzero() == weight.count_nonzero()
    assert linear.larger(wide).shape == wide.shape
