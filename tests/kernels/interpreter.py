"""Triton's interpreter, without what it does over and over: its results are the same, bf16 apart, which rounds as a GPU
does.

It is made for a look at a kernel. The tests run some ten thousand launches, and two thirds of their time would go into
looking through all of `triton.language` at every call of a device function, and into checks for overflow.
"""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter


def install() -> None:
    """Put it all in place.

    Raises:
        RuntimeError: a part of the interpreter is not where this looks for it.
    """
    parts = (
        "ReduceOps.generic_reduce", "_patch_lang", "_convert_float", "np_erf_fp32", "interpreter_builder.options",
        "InterpreterOptions.sanitize_overflow",
    )  # fmt: skip
    for part in parts:
        try:
            operator.attrgetter(part)(interpreter)
        except AttributeError as error:
            raise RuntimeError(f"triton {triton.__version__}: its interpreter has no {part}, see {__file__}") from error
    interpreter.ReduceOps.generic_reduce = reduced_by_halves
    interpreter._patch_lang = once_a_launch(interpreter._patch_lang)
    interpreter._convert_float = converted_at_once(interpreter._convert_float)
    interpreter.np_erf_fp32 = erf


def once_a_launch(patch: Callable) -> Callable:
    """`triton.language` made interpretable once for each of the two modules by which functions know it."""
    scopes: dict[tuple, object] = {}

    class Launch:
        def restore(self) -> None:
            while scopes:
                scopes.popitem()[1].restore()

    @functools.cache
    def languages(function: Callable) -> tuple[bool, ...]:
        seen = {id(value) for value in function.__globals__.values()}
        return id(tl) in seen, id(tl.core) in seen

    def patched(function: Callable) -> Launch:
        known = languages(function)
        if known not in scopes:
            scopes[known] = patch(function)
        return Launch()

    return patched


def watch_overflow(watched: bool) -> None:
    """Whether every sum and product of integers is held against the range of its type. By default the interpreter
    computes that, but only in debug mode is there an assertion."""
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(debug=watched, sanitize_overflow=watched)


@contextlib.contextmanager
def programs_in(order: Callable[[int], list[int]]) -> Iterator[None]:
    """With the programs of a launch started in the order that this gives for their number."""
    builder = interpreter.interpreter_builder
    start, orders = builder.set_grid_idx, functools.cache(order)
    builder.set_grid_idx = lambda x, y, z: start(orders(builder.grid_dim[0])[x], y, z)
    try:
        yield
    finally:
        del builder.set_grid_idx


def converted_at_once(convert: Callable) -> Callable:
    """bf16 and fp32 into each other, by torch: rounded to nearest even, where the interpreter cuts off."""

    def converted(data: np.ndarray, source: tl.dtype, target: tl.dtype, rounding: object) -> np.ndarray:
        if (source, target) == (tl.bfloat16, tl.float32):
            return data.astype(np.uint32) << 16
        if (source, target) == (tl.float32, tl.bfloat16) and rounding is None:
            return torch.from_numpy(np.array(data)).to(torch.bfloat16).view(torch.uint16).numpy()
        return convert(data, source, target, rounding)

    return converted


def erf(data: np.ndarray) -> np.ndarray:
    """Of fp32: the interpreter's own goes number by number."""
    return torch.erf(torch.from_numpy(data.astype(np.float64))).numpy().astype(np.float32)


def reduced_by_halves(reduction, inputs) -> list:
    """A reduction by a function of the kernel's own, neighbours first, as a tree: what the interpreter does too, but
    number by number, which takes a thousand times as long."""
    tensors, axis = reduction.unravel(inputs, reduction.axis)
    arrays = [tensor.handle.data for tensor in tensors]
    while arrays[0].shape[axis] > 1:
        halves = [
            reduction.to_tensor(array.take(range(first, array.shape[axis], 2), axis), tensor.dtype)
            for first in (0, 1)
            for array, tensor in zip(arrays, tensors, strict=True)
        ]
        combined = reduction.combine_fn.fn(*halves)
        arrays = [tensor.handle.data for tensor in (combined if isinstance(combined, tuple) else (combined,))]
    if not reduction.keep_dims:
        arrays = [array.squeeze(axis) for array in arrays]
    return [reduction.to_tensor(array, tensor.dtype) for array, tensor in zip(arrays, tensors, strict=True)]
