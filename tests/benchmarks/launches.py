"""What Triton's launcher gets when a published point of a kernel is run, on a GPU that need not be there.

The case makes its inputs and our function calls its kernels as in a measurement; only, nothing is computed.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from snippets.validation.compiled_code import TARGETS
from tests.benchmarks import stand_ins
from tests.benchmarks.case import Case, Point, of_module


@dataclass(frozen=True)
class Launch:
    """A kernel, and what its launcher got."""

    kernel: JITFunction
    arguments: tuple
    keywords: dict[str, Any]


class Unwritten(TorchDispatchMode):
    """Operations return memory that nothing is written to: tensors of published sizes then cost none."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> object:
        kwargs = kwargs or {}
        if operation is torch.ops.aten._local_scalar_dense.default:
            return 1
        if operation.namespace != "aten":  # ours, which only launch
            return operation(*args, **kwargs)
        if any(returned.alias_info is not None for returned in operation._schema.returns):
            return args[0] if operation._schema.name.endswith("_") else operation(*args, **kwargs)  # in place; a view
        args, kwargs = tree_map_only(Tensor, _shape_of, (args, kwargs))
        shapes = operation(*args, **kwargs | ({"device": "meta"} if "device" in kwargs else {}))
        return tree_map_only(Tensor, _memory_for, shapes)


def _as_fp32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float32 else torch.empty_like(tensor, dtype=torch.float32)


UNCOMPUTED: dict[str, Any] = {  # in an operator of ours, where the mode is off
    "addmm_": lambda total, *_, **__: total,
    "copy_": lambda target, *_, **__: target,
    "float": _as_fp32,
}


def _shape_of(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _memory_for(shape: Tensor) -> Tensor:
    return torch.empty_strided(shape.shape, shape.stride(), dtype=shape.dtype)


def published(name: str) -> list[Point]:
    """The points of kernels/<name>.py at which it is measured alone, and not inside a model."""
    return [point for point in _case(name).points(torch.device("cuda")) if "width" not in point.shape]


def _case(name: str) -> Case:
    return of_module(importlib.import_module(f"tests.benchmarks.kernels.{name}"))


def launched(name: str, points: Iterable[tuple[Point, Iterable[str]]]) -> Iterator[tuple[Point, str, list[Launch]]]:
    """What the timed call of kernels/<name>.py launches at each point, on each of the targets given for it."""
    kernel, case = importlib.import_module(f"kernels.{name}"), _case(name)
    computing = mock.patch.multiple(Tensor, **UNCOMPUTED)
    for point, targets in points:
        with Unwritten(), computing:
            ours = case.prepare(point, torch.device("cpu")).variants["ours"]
            for target in targets:
                with recording(kernel, target) as launches:
                    call = ours.build()  # a backward's runs the forward
                    launches.clear()
                    call()
                yield point, target, launches


@contextlib.contextmanager
def recording(module: ModuleType, target: str) -> Iterator[list[Launch]]:
    """The launches of the module's kernels, on CPU tensors as they would be on such a GPU; nothing runs."""
    launches: list[Launch] = []

    class Recorder:
        def __init__(self, kernel: JITFunction):
            self.kernel = kernel

        def __getitem__(self, grid: object) -> Callable[..., None]:
            return lambda *arguments, **keywords: launches.append(Launch(self.kernel, arguments, keywords))

    recorders = {name: Recorder(kernel) for name, kernel in stand_ins.kernels_of(module).items()}
    with stand_ins.on(module, target), stand_ins.replaced(module, _INTERPRETED=True, **recorders):
        yield launches


def specialised(launch: Launch, target: str) -> tuple[ASTSource, dict[str, Any]]:
    """What the launcher compiles for these very arguments, and its options."""
    kernel, backend = launch.kernel, make_backend(TARGETS[target])
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, options = bind(*launch.arguments, **launch.keywords)
    options, signature, constants, attributes = kernel._pack_args(
        backend, launch.keywords, bound, specialization, options
    )
    return ASTSource(kernel, signature, constants, attributes), options.__dict__
