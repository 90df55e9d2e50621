"""Only recordings are counted, and a graph is one launch."""

import pytest
import torch
from torch._dynamo.callback import CallbackTrigger, callback_handler

from snippets.compiler.modes_options import compiled
from snippets.compiler.modes_traps_recordings import launches, plain, recordings
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
