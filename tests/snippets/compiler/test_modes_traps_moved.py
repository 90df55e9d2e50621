"""What becomes of an input that moves, and what a mark promises."""

import inspect

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCachePickler
from torch._inductor.cudagraph_trees import CUDAGraphTreeManager
from torch._inductor.utils import fresh_cache

from snippets.compiler import modes_traps_moved
from snippets.compiler.modes_traps_moved import moved

DEVICE = torch.device("cuda")
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="a CPU has no CUDA graphs")


@pytest.mark.parametrize(("guard", "graphs"), [(True, 3), (False, 1)])
def test_a_marked_tensor_is_compiled_for_itself_unless_it_says_otherwise(guard: bool, graphs: int):
    torch.compiler.reset()
    counter = CompileCounter()
    function = torch.compile(lambda x, y: x + y, backend=counter)
    for _ in range(3):
        marked = torch.ones(4)
        torch._dynamo.mark_static_address(marked, guard=guard)
        function(torch.ones(4), marked)
    assert counter.frame_count == graphs


def test_marked_inputs_may_move_without_a_limit():
    """What counts towards the limit of recordings: on torch 2.11 nothing, later all but a marked input's move."""
    source = inspect.getsource(CUDAGraphTreeManager)
    if torch.__version__.startswith("2.11"):
        assert "if torch._dynamo.config.inline_inbuilt_nn_modules:\n            return False" in source
        assert torch._dynamo.config.inline_inbuilt_nn_modules
    else:
        assert "if status != CheckInvariantStatus.StaticInputIdxMismatch:\n" in source


def test_a_marked_input_is_part_of_what_the_cache_knows():
    """On torch 2.11 it is not: code that was compiled for the unmarked tensor is taken from the cache."""
    known = inspect.getsource(AOTAutogradCachePickler._reduce_aot_config)
    assert ("static_input_indices" in known) is not torch.__version__.startswith("2.11")


@pytest.fixture
def without_caches():
    """Nothing that an earlier test has compiled is found again."""
    with torch.compiler.config.patch(force_disable_caches=True):
        yield


@GPU
@torch.no_grad()
def test_a_graph_recorded_by_hand_reads_the_old_address():
    assert modes_traps_moved.moved_by_hand(DEVICE) == (2, 20)


@GPU
@torch.no_grad()
@pytest.mark.parametrize(("static", "recorded"), [(False, 1), (True, 6)])
@pytest.mark.usefixtures("without_caches")
def test_an_input_that_moves_is_copied_or_recorded_again(static: bool, recorded: int):
    graphs, launched, right = moved(DEVICE, static)
    assert (graphs, right) == (recorded, True)
    assert launched == (1 if static else 2)  # the copy of the input


@GPU
@torch.no_grad()
def test_a_mark_comes_too_late_on_torch_2_11_if_the_cache_has_the_unmarked_code():
    with fresh_cache():
        graphs = [moved(DEVICE, static)[0] for static in (False, True)]
    assert graphs == [1, 1 if torch.__version__.startswith("2.11") else 6]
