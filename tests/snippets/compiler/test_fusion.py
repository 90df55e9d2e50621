"""What Inductor plans for the page's functions: the counts that the page states, and results that stay the same."""

from functools import partial

import pytest
import torch

from snippets.compiler.fusion import (
    KEEP,
    STEPS,
    activated,
    balanced,
    by_head,
    columns_first,
    eager,
    gated,
    inputs_of,
    opaque_norm,
    pooled,
    projected,
    scaled,
    scaled_opaque,
    together,
    window,
)
from snippets.compiler.fusion_plan import plan
from snippets.validation.equivalence import check

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, COLUMNS = 512, 256
TENSOR = ROWS * COLUMNS * 4
by_name = pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)


def inputs(step, dtype=torch.float32):
    return inputs_of(step, ROWS, COLUMNS, DEVICE, dtype)


def tensors_moved(kernels) -> int:
    """Whole tensors: what is smaller by far, one number a row, is rounded away."""
    return round(sum(kernel.bytes for kernel in kernels) / TENSOR)


@pytest.mark.parametrize("step", [scaled, pooled])  # the last of one kernel, and the one that calls all others
def test_a_compiled_step_is_the_same_function(step):
    arguments = inputs(step)
    exact = step(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in arguments))
    torch.compiler.reset()
    returned = [step(*arguments), torch.compile(step)(*arguments), exact]
    baseline, compiled, exact = (
        dict(enumerate(results if isinstance(results, tuple) else (results,))) for results in returned
    )
    sums = {name: tensor.abs().max().item() for name, tensor in exact.items()}
    check(compiled, baseline, exact, largest_summands=sums)


@by_name
def test_a_step_begins_with_the_one_before(step):
    """Else the counts of two steps could not be compared."""
    before = STEPS[max(STEPS.index(step) - 1, 0)]
    assert (
        step.__code__.co_varnames[: before.__code__.co_argcount]
        == before.__code__.co_varnames[: before.__code__.co_argcount]
    )


def test_reductions_along_the_row_stay_in_one_kernel():
    for step in STEPS[: STEPS.index(scaled) + 1]:
        (kernel,) = plan(step, *inputs(step))
        assert kernel.written and tensors_moved([kernel]) == 3
    assert eager(gated, *inputs(gated))[0] > 1


def test_a_reduction_down_the_columns_takes_kernels_of_its_own():
    """How many depends on the device: a GPU may add the parts of a long column up in a second kernel."""
    kernels = plan(balanced, *inputs(balanced))
    assert len(kernels) >= 3 and tensors_moved(kernels) == 6
    assert kernels[0].makes[-1] != "div" and kernels[-1].makes[-1] == "div"


def test_a_reduction_of_an_input_comes_first_and_costs_one_more_read():
    """Against `balanced`, which has to write what it reduces, and to read it twice."""
    kernels = plan(columns_first, *inputs(scaled))
    assert tensors_moved(kernels) == 4 and tensors_moved(kernels[-1:]) == 3


def test_a_product_is_left_to_a_library_and_its_epilogue_is_not_fused():
    before, product, after = (plan(step, *inputs(step)) for step in (balanced, projected, activated))
    assert len(product) == len(before) + 1 and [kernel.written for kernel in product].count(False) == 1
    assert len(after) == len(product) + 1 and after[-1].written
    assert after[-1].bytes == pytest.approx(2 * TENSOR, rel=0.01)


def test_a_change_of_layout_joins_the_kernel_that_writes():
    before, after = (plan(step, *inputs(step)) for step in (activated, by_head))
    assert len(after) == len(before) and after[-1].makes == ("clone",)
    assert after[-1].bytes == before[-1].bytes


def test_a_scatter_is_fused_with_what_it_adds_but_its_table_is_cleared_before():
    before, after = (plan(step, *inputs(step)) for step in (by_head, pooled))
    assert len(after) == len(before) + 1
    assert after[-1].makes == ("clone", "index_put_") and after[-1].written


def test_an_opaque_norm_makes_three_kernels_of_one():
    (alone,) = plan(scaled, *inputs(scaled))
    kernels = plan(scaled_opaque, *inputs(scaled_opaque))
    assert [kernel.written for kernel in kernels] == [True, False, True]
    assert (tensors_moved([alone]), tensors_moved(kernels)) == (3, 7)


def test_the_opaque_norm_is_an_honest_operator():
    hidden, weight = torch.randn(4, 8, device=DEVICE), torch.randn(8, device=DEVICE)
    torch.library.opcheck(opaque_norm, (hidden, weight))
    torch.testing.assert_close(scaled_opaque(*inputs(scaled)), scaled(*inputs(scaled)))


def test_an_expensive_value_is_computed_again_unless_it_is_kept():
    x = torch.randn(ROWS, COLUMNS, device=DEVICE)
    function = partial(window, width=8)
    (fused,) = plan(function, x)
    kept = plan(function, x, **KEEP)
    assert tensors_moved([fused]) == 2 and [kernel.makes[0] for kernel in kept] == ["erf", "add"]
    assert tensors_moved(kept) == 4
    torch.testing.assert_close(torch.compile(function, options=KEEP)(x), function(x))


@pytest.mark.parametrize("several", [1, 4])
def test_tensors_that_need_each_other_share_a_kernel(several):
    tensors = [torch.randn(ROWS, COLUMNS, device=DEVICE) for _ in range(several)]
    (kernel,) = plan(together, *tensors)
    assert tensors_moved([kernel]) == 2 * several
    torch.testing.assert_close(torch.compile(together)(*tensors), together(*tensors))
