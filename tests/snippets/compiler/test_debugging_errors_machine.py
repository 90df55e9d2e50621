"""A machine that only stands in for another is itself again afterwards."""

import torch
from torch._inductor import scheduler

from snippets.compiler.debugging_errors import provoke
from snippets.compiler.debugging_errors_machine import gpu_too_old, no_triton


def test_two_gpus_are_refused_and_this_machine_is_as_before():
    before = scheduler.has_triton, torch.cuda.get_device_properties
    kinds = [type(provoke(function)).__name__ for function in (no_triton, gpu_too_old)]
    assert kinds == ["TritonMissing", "GPUTooOldForTriton"]
    assert (scheduler.has_triton, torch.cuda.get_device_properties) == before
