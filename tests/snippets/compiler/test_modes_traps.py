"""Each trap of a CUDA graph springs, and its mend mends."""

import inspect

import pytest
import torch
from torch._dynamo.callback import CallbackTrigger, callback_handler
from torch._dynamo.testing import CompileCounter
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCachePickler
from torch._inductor.cudagraph_trees import CUDAGraphTreeManager
from torch._inductor.utils import fresh_cache

from snippets.compiler import modes_traps
from snippets.compiler.modes_options import compiled
from snippets.compiler.modes_traps import (
    Counter,
    count,
    kept_memory,
    kept_results,
    launches,
    moved,
    plain,
    recordings,
    skipped,
)
from snippets.compiler.modes_workloads import make

DEVICE = torch.device("cuda")
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="a CPU has no CUDA graphs")


def test_only_recordings_are_counted():
    with recordings() as recorded:
        for trigger in (CallbackTrigger.DYNAMO, CallbackTrigger.CUDAGRAPH_RECORDING):
            with callback_handler.install_callbacks(trigger, "0/0"):
                pass
    with callback_handler.install_callbacks(CallbackTrigger.CUDAGRAPH_RECORDING, "1/0"):
        pass
    assert recorded == ["0/0"]


def test_an_error_is_shown_without_its_stack():
    said = 'Error: overwritten by a subsequent run. Stack trace: File "x.py", line 3. \n x * 2. To prevent it, clone.'
    assert plain(RuntimeError(said)) == "Error: overwritten by a subsequent run. Stack trace: …. To prevent it, clone."
    assert plain(RuntimeError("mutated inputs (1 instances). Found from : \n File")) == (
        "mutated inputs (1 instances). Found from : …"
    )


def test_without_a_gpu_the_script_says_so(script):
    assert "none of these traps exists here" in script("snippets.compiler.modes_traps", "cpu").stdout


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
def test_a_graph_is_one_launch_and_its_input_another():
    module, (x,) = make({"mlp": 4, "rows": 64, "width": 512}, DEVICE, torch.bfloat16)
    started = {}
    for mode in ("default", "reduce-overhead"):
        function = compiled(module, mode)
        for _ in range(3):
            function(x)
        started[mode] = launches(lambda function=function: function(x))
    assert started["default"] >= 8 and started["reduce-overhead"] == 2


@GPU
@torch.no_grad()
def test_a_graph_recorded_by_hand_reads_the_old_address():
    assert modes_traps.moved_by_hand(DEVICE) == (2, 20)


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
def test_a_result_is_overwritten_with_an_error_at_first_and_silently_later():
    assert modes_traps.overwritten_by_hand(DEVICE) == (2, 20)
    assert "overwritten by a subsequent run" in kept_results(DEVICE)
    assert kept_results(DEVICE, warm=3) == "sum 96", "each of the four is the last"
    assert "overwritten by a subsequent run" in kept_results(DEVICE, before=torch.compiler.cudagraph_mark_step_begin)
    for warm in (0, 3):
        assert kept_results(DEVICE, warm, torch.clone) == "sum 48"


@GPU
@torch.no_grad()
def test_memory_of_graphs_is_kept_until_a_reset():
    held, recorded, after = kept_memory(DEVICE, "reduce-overhead", [2048, 1024])
    assert recorded == 2 and held[0] > 0 and after < held[-1]
    assert kept_memory(DEVICE, "default", [2048, 1024])[:2] == ([0, 0], 0)


@GPU
@torch.no_grad()
def test_a_mark_comes_too_late_on_torch_2_11_if_the_cache_has_the_unmarked_code():
    with fresh_cache():
        graphs = [moved(DEVICE, static)[0] for static in (False, True)]
    assert graphs == [1, 1 if torch.__version__.startswith("2.11") else 6]


@GPU
@torch.no_grad()
@pytest.mark.usefixtures("without_caches")
def test_an_argument_that_is_changed_gets_no_graph_and_a_buffer_does():
    x, total = (torch.ones(4, device=DEVICE) for _ in range(2))
    assert skipped(count, total, x).startswith("skipping cudagraphs due to mutated inputs (1 instances)")
    assert skipped(Counter().to(DEVICE), x) == "1 graph recorded"
    torch._dynamo.mark_static_address(total, guard=False)
    assert skipped(count, total, x) == "1 graph recorded"


@GPU
def test_large_sizes_first_keep_less(script):
    """What the page advises: a large graph's memory serves the small ones, and not the other way round."""
    printed = script("snippets.compiler.modes_traps").stdout  # alone: what others hold is not counted
    down, up = (
        next(line.removeprefix(name).split() for line in printed.splitlines() if line.startswith(name + "  "))
        for name in ("reduce-overhead, large first", "reduce-overhead, small first")
    )
    assert int(down[3]) < int(up[3])
