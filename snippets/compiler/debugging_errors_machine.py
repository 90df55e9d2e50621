"""Errors of a machine that lacks something, each provoked; this one stands in for it."""

import sysconfig
from typing import Any
from unittest import mock

import torch
from torch._inductor import config, cpp_builder, scheduler
from torch._inductor.virtualized import V

from snippets.compiler.debugging_errors_compiler import X


# --8<-- [start:machine]
def no_compiler() -> None:
    with config.patch({"cpp.cxx": ("/nowhere/g++",)}):
        torch.compile(lambda x: x.sin() + 3)(X)


def no_python_headers() -> None:
    real = sysconfig.get_path

    def elsewhere(name: str, *args: Any, **kwargs: Any) -> str:
        return "/nowhere" if name == "include" else real(name, *args, **kwargs)

    with mock.patch.object(sysconfig, "get_path", elsewhere), config.patch(cpp_cache_precompile_headers=False):
        torch.compile(lambda x: x.cos() + 3)(X)


def no_compiler_on_windows() -> None:
    cpp_builder.check_compiler_exist_windows("cl")


def create_gpu_backend(major: int, minor: int) -> None:
    """What Inductor does before it writes the first kernel for a GPU, here for one of that compute capability."""
    properties = mock.Mock(major=major, minor=minor)
    properties.name = "a GPU"
    with (
        V.set_graph_handler(mock.Mock()),
        mock.patch.object(scheduler, "has_triton", lambda *_: False),
        mock.patch.object(scheduler, "get_scheduling_for_device", lambda _: mock.Mock()),
        mock.patch("torch.cuda.get_device_properties", lambda _: properties),
    ):
        scheduler.Scheduler.create_backend(mock.Mock(), torch.device("cuda", 0))


def no_triton() -> None:
    create_gpu_backend(9, 0)


def gpu_too_old() -> None:
    create_gpu_backend(6, 1)


# --8<-- [end:machine]
