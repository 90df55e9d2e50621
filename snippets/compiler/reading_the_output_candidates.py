"""A GPU that Inductor is made to believe in, and the configurations that it would try there."""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from unittest import mock

import torch
import torch._inductor.config
import torch._inductor.debug
import triton
from torch._dynamo.device_interface import CudaInterface
from torch._inductor.runtime import triton_heuristics
from triton.backends.compiler import GPUTarget

# An H200, as PyTorch describes it.
H200 = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, warp_size=32, gcnArchName="",
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
    shared_memory_per_block=49152, shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472,
    total_memory=150_000_000_000, L2_cache_size=62_914_560,
)  # fmt: skip


@contextlib.contextmanager
def pretended_gpu() -> Iterator[None]:
    """Let Inductor believe in an H200: all that it asks a GPU while it generates code."""
    driver = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_active_torch_device=lambda: torch.device("cuda", 0),
        get_current_device=lambda: 0,
    )
    answers = {
        "get_device_properties": lambda device=None: H200,
        "get_compute_capability": lambda device=None: 90,
        "is_bf16_supported": lambda including_emulation=False: True,
    }
    with contextlib.ExitStack() as stack:
        patched = stack.enter_context
        for name, answer in answers.items():
            patched(mock.patch.object(CudaInterface, name, staticmethod(answer)))
        for place in (CudaInterface.Worker, torch.cuda):
            patched(mock.patch.object(place, "get_device_properties", staticmethod(lambda device=None: H200)))
        patched(mock.patch.object(torch.cuda, "get_device_capability", lambda device=None: (9, 0)))
        patched(mock.patch.object(torch.cuda, "current_device", lambda: 0))
        patched(mock.patch.object(triton.runtime.driver, "_active", driver, create=True))
        patched(mock.patch("torch._inductor.scheduler.has_triton", lambda *_: True, create=True))
        patched(mock.patch("torch.utils._triton.has_triton", lambda *_: True))
        options = {"fx_graph_cache": False, "compile_threads": 1, "trace.provenance_tracking_level": 1}
        patched(torch._inductor.config.patch(options))
        yield


# --8<-- [start:candidates]
def candidates(source: str) -> tuple[str, list[tuple[dict[str, int], int]]]:
    """How a generated kernel may be launched: the rule for its grid, and the configurations that Inductor would try."""
    found: list[tuple[str, list]] = []

    def note(*args: object, **keywords: object) -> Callable:
        configurations = args[1] if len(args) > 1 else keywords["configs"]
        found.append((keywords["inductor_meta"]["grid_type"], list(configurations)))
        return lambda function: function

    available = mock.patch.object(torch.cuda, "is_available", lambda: True)  # on which some rules depend
    with pretended_gpu(), available, mock.patch.object(triton_heuristics, "cached_autotune", note):
        decorators = source[: source.index("@triton.jit")].replace("triton_helpers.set_driver_to_gpu()", "")
        exec(decorators + "def kernel(): ...\n", {"__file__": "kernel.py"})
    ((rule, configurations),) = found
    return rule, [(dict(each.kwargs), each.num_warps) for each in configurations]


# --8<-- [end:candidates]
