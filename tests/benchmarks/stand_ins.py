"""What stands in for parts of a kernel file, while a sweep, a recording of launches or a test calls its functions.

The protocol: a file in kernels/ has these module-level names, and looks each of them up when it is called.

    NAME_kernel                                every Triton kernel that it launches, as NAME_kernel[grid](...)
    _forward_launch(row_length, bits, device)  the launch table: options of the launch, num_warps among them
    _backward_launch(row_length, bits, device)
    _device(device)                            (multiprocessors, threads of a warp)
    _INTERPRETED                               whether Triton interprets, so that CPU tensors are taken

and these where it needs them:

    _shared_memory(device)                     bytes of a multiprocessor, where the launch table depends on them
    _capability(device)                        the generation of an NVIDIA GPU, 9 for Hopper; 0 of another maker's
    _PTX                                       whether the kernels are compiled for NVIDIA's GPUs, where they have PTX

Functions of a device may keep their answers in a `functools.cache`: the answers are forgotten before and after
something else stands in for what they ask.
"""

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from unittest import mock

from snippets.validation.compiled_code import TARGETS

REQUIRED = ("_forward_launch", "_backward_launch", "_device", "_INTERPRETED")
# What launch tables ask of a GPU: an A100, an H200, a B200, an MI300X.
MULTIPROCESSORS = {"sm_80": 108, "sm_90": 132, "sm_100": 148, "gfx942": 304}
SHARED_MEMORY = {"sm_80": 164 * 1024, "sm_90": 228 * 1024, "sm_100": 228 * 1024, "gfx942": 64 * 1024}
Options = dict[str, int]
Question = tuple[int, int]  # a row length, and the bits of a dtype


def kernels_of(kernel: ModuleType) -> dict[str, Any]:
    """The Triton kernels that a kernel file launches, by name."""
    return {name: value for name, value in vars(kernel).items() if name.endswith("_kernel")}


@contextlib.contextmanager
def replaced(kernel: ModuleType, **stand_ins: Any) -> Iterator[None]:
    """With other values of some names; what launch tables answered is forgotten before and after.

    Raises:
        AttributeError: the kernel file has no such name.
    """
    _forget(kernel)
    try:
        with mock.patch.multiple(kernel, **stand_ins):
            yield
    finally:
        _forget(kernel)


def on(kernel: ModuleType, target: str) -> contextlib.AbstractContextManager[None]:
    """With the launch tables asked as on a GPU of `TARGETS`, whatever the device."""
    size = MULTIPROCESSORS[target], TARGETS[target].warp_size
    found: dict[str, Any] = {
        "_device": lambda device: size,
        "_PTX": TARGETS[target].backend == "cuda",
        "_shared_memory": lambda device: SHARED_MEMORY[target],
        "_capability": lambda device: TARGETS[target].arch // 10 if TARGETS[target].backend == "cuda" else 0,
    }
    return replaced(kernel, **{name: value for name, value in found.items() if name in ("_device", *vars(kernel))})


@contextlib.contextmanager
def launching(kernel: ModuleType, direction: str, options: Options) -> Iterator[None]:
    """With these options in the place of the launch table's answer, for "forward" or "backward"."""
    with mock.patch.object(kernel, f"_{direction}_launch", lambda *arguments: dict(options)):
        yield


@contextlib.contextmanager
def noting(kernel: ModuleType) -> Iterator[dict[str, tuple[Question, Options]]]:
    """Notes what the launch table is asked and answers, by direction."""
    answers: dict[str, tuple[Question, Options]] = {}

    def table(direction: str) -> Callable[..., Options]:
        launch = getattr(kernel, f"_{direction}_launch")

        def noted(*arguments: Any) -> Options:
            options = launch(*arguments)
            answers[direction] = arguments[:2], dict(options)
            return options

        return noted

    with mock.patch.multiple(kernel, _forward_launch=table("forward"), _backward_launch=table("backward")):
        yield answers


def _forget(kernel: ModuleType) -> None:
    for value in vars(kernel).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()
