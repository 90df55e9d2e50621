"""Triton's interpreter, without what it does over and over: its results are the same, bf16 apart, which rounds as a GPU
does.

It is made for a look at a kernel. The tests run some ten thousand launches, and most of their time would go into
looking through all of `triton.language` at every call of a device function, into types, and into checks for overflow.
"""

import contextlib
import ctypes
import functools
import operator
from collections.abc import Callable, Iterator

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from tests.kernels.recorded import recorded


def install() -> None:
    """Put it all in place.

    Raises:
        RuntimeError: a part of the interpreter is not where this looks for it.
    """
    parts = (
        "ReduceOps.generic_reduce", "_patch_lang", "_patch_attr", "_convert_float", "np_erf_fp32",
        "interpreter_builder.options", "interpreter_semantic.builder", "InterpreterOptions.sanitize_overflow",
        "InterpreterBuilder.create_dot", "TensorHandle.__post_init__", "_interpreter.load", "_interpreter.store",
    )  # fmt: skip
    for part in parts:
        try:
            operator.attrgetter(part)(interpreter)
        except AttributeError as error:
            raise RuntimeError(f"triton {triton.__version__}: its interpreter has no {part}, see {__file__}") from error
    interpreter.ReduceOps.generic_reduce = reduced_by_halves
    interpreter._patch_lang = once_a_launch(interpreter._patch_lang)
    interpreter._convert_float = converted_at_once(interpreter._convert_float)
    builder = interpreter.InterpreterBuilder
    builder.create_dot = dotted(builder.create_dot)
    interpreter.np_erf_fp32 = erf
    memory = interpreter._interpreter
    memory.load, memory.store = loaded(memory.load), stored(memory.store)
    interpreter._get_np_dtype = numpy_dtypes(interpreter._get_np_dtype)
    interpreter.TensorHandle.__init__ = handles(interpreter.TensorHandle.__post_init__)
    tl.dtype.__eq__, tl.pointer_type.__eq__, tl.block_type.__eq__ = map(
        same_first, (tl.dtype.__eq__, tl.pointer_type.__eq__, tl.block_type.__eq__)
    )
    tl.block_type.__init__ = block_types(tl.block_type.__init__)
    tl.tensor.__init__ = tensors(tl.tensor.__init__)
    interpreter._patch_attr = builtins


def once_a_launch(patch: Callable) -> Callable:
    """`triton.language` made interpretable once for each of the two modules by which functions know it.

    What that changes is looked for in the first launch alone.
    """
    scopes: dict[tuple, object] = {}
    changes: dict[tuple, list[tuple[object, str, object]]] = {}

    class Launch:
        def restore(self) -> None:
            while scopes:
                scopes.popitem()[1].restore()

    @functools.cache
    def languages(function: Callable) -> tuple[bool, ...]:
        seen = {id(value) for value in function.__globals__.values()}
        return id(tl) in seen, id(tl.core) in seen

    def learn(function: Callable, key: tuple) -> None:
        active = list(scopes)
        Launch().restore()  # what has been changed before would not be seen
        scope = patch(function)
        changes[key] = [(owner, name, getattr(owner, name)) for owner, name, _ in scope._changes]
        scope.restore()
        for each in active:
            change(each)

    def change(key: tuple) -> None:
        scopes[key] = interpreter._LangPatchScope()
        for each in changes[key]:
            scopes[key].set_attr(*each)

    def patched(function: Callable) -> Launch:
        key = languages(function)
        if key not in changes:
            learn(function, key)
        if key not in scopes:
            change(key)
        return Launch()

    return patched


def loaded(load: Callable) -> Callable:
    """Numbers that lie side by side at once: the interpreter goes number by number."""

    def found(at: np.ndarray, inside: np.ndarray, other: np.ndarray, dtype: np.dtype) -> np.ndarray:
        at, inside, other = map(np.asarray, (at, inside, other))  # of a descriptor some are views of memory
        pieces = side_by_side(at, inside, dtype.itemsize) if other.dtype == dtype else None
        if pieces is None:
            return load(at, inside, other, dtype)
        result = np.array(other).reshape(-1)
        for first, count, address in pieces:
            result[first : first + count] = numbers_at(address, count, dtype)
        return result.reshape(at.shape)

    return found


def stored(store: Callable) -> Callable:
    def done(at: np.ndarray, values: np.ndarray, inside: np.ndarray) -> None:
        at, values, inside = map(np.asarray, (at, values, inside))
        pieces = side_by_side(at, inside, values.itemsize)
        if pieces is None:
            return store(at, values, inside)
        values = values.reshape(-1)
        for first, count, address in pieces:
            numbers_at(address, count, values.dtype)[:] = values[first : first + count]

    return done


def side_by_side(at: np.ndarray, inside: np.ndarray, size: int) -> list[tuple[int, int, int]] | None:
    """Of a block's addresses those inside, as pieces (first, count, address); None where that is no gain.

    A piece is a row of the block, or all of it, up to where its mask ends.
    """
    width = at.shape[-1]
    if at.size < 1024 or inside.shape != at.shape:
        return None
    addresses, mask = at.reshape(-1), inside.reshape(-1)
    if (whole := piece(addresses, mask, 0, size)) is not None:
        return whole
    if width < 512:
        return None
    rows = [piece(addresses[i : i + width], mask[i : i + width], i, size) for i in range(0, at.size, width)]
    return None if None in rows else [one for row in rows for one in row]


def piece(at: np.ndarray, mask: np.ndarray, first: int, size: int) -> list[tuple[int, int, int]] | None:
    count = np.count_nonzero(mask)
    if not count:
        return []
    if not mask[:count].all() or not np.array_equal(at[:count] - at[0], steps(size)[:count]):
        return None
    return [(first, count, int(at[0]))]


@functools.cache
def steps(size: int) -> np.ndarray:
    return np.arange(tl.core.TRITON_MAX_TENSOR_NUMEL, dtype=np.uint64) * np.uint64(size)


def numbers_at(address: int, count: int, dtype: np.dtype) -> np.ndarray:
    return np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype)


def numpy_dtypes(numpy_dtype: Callable) -> Callable:
    """By name, where the interpreter makes a table of all for each question."""
    known: dict[str, np.dtype] = {}

    def found(dtype: tl.dtype) -> np.dtype:
        if dtype.name not in known:
            known[dtype.name] = numpy_dtype(dtype)
        return known[dtype.name]

    return found


def handles(check: Callable) -> Callable:
    """`TensorHandle.__init__`, which checks once whether numbers of so many bytes fit into a type."""
    fit: set[tuple[int, str]] = set()

    def made(self: interpreter.TensorHandle, data: np.ndarray, dtype: tl.dtype, attr: dict | None = None) -> None:
        self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
        if (key := (data.itemsize, dtype.name)) not in fit:
            check(self)
            fit.add(key)

    return made


def same_first(equal: Callable) -> Callable:
    """A type is itself."""
    return lambda self, other: self is other or equal(self, other)


def block_types(init: Callable) -> Callable:
    """`tl.block_type.__init__`, which checks a shape and writes its name once."""
    known: dict[tuple, tuple] = {}

    def made(self: tl.block_type, element_ty: tl.dtype, shape: list) -> None:
        key = (element_ty.name, *[side.value if isinstance(side, tl.constexpr) else side for side in shape])
        if key not in known:
            init(self, element_ty, shape)
            known[key] = self.shape, self.numel, self.name
        self.element_ty = element_ty
        self.shape, self.numel, self.name = known[key]

    return made


def tensors(init: Callable) -> Callable:
    """`tl.tensor.__init__`, which makes the shape of a type once."""
    known: dict[str, tuple] = {}

    def made(self: tl.tensor, handle: object, type: tl.dtype) -> None:
        if type.name not in known:
            init(self, handle, type)
            known[type.name] = self.shape, self.numel
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = known[type.name]

    return made


def builtins(owner: object, name: str, member: Callable, builder: object, scope: object) -> None:
    """In place of a builtin, without its check that a kernel calls it: here only kernels do."""
    scope.set_attr(owner, name, recorded(getattr(member, "__wrapped__", member)))


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


ROUNDED = {  # to what torch rounds fp32, and with which bits it gives that
    tl.bfloat16: (torch.bfloat16, torch.uint16), tl.float16: (torch.float16, torch.uint16),
    tl.float8e4nv: (torch.float8_e4m3fn, torch.uint8), tl.float8e5: (torch.float8_e5m2, torch.uint8),
}  # fmt: skip
FP8 = (tl.float8e4nv, tl.float8e5)


def converted_at_once(convert: Callable) -> Callable:
    """bf16 and fp32 into each other, and fp32 to fp16 and fp8, by torch: rounded to nearest even, where the interpreter
    cuts off or loses a carry into the exponent. As on a GPU, fp8 ends at its largest number."""

    def converted(data: np.ndarray, source: tl.dtype, target: tl.dtype, rounding: object) -> np.ndarray:
        if (source, target) == (tl.bfloat16, tl.float32):
            return data.astype(np.uint32) << 16
        if source == tl.float32 and target in ROUNDED and rounding != interpreter._ir.ROUNDING_MODE.RTZ:
            dtype, bits = ROUNDED[target]
            fp32 = torch.from_numpy(np.array(data))
            if target in FP8:
                fp32 = fp32.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
            return fp32.to(dtype).view(bits).numpy()
        if source in FP8 and target == tl.float16:  # for a dot, as the interpreter does it: fp16 holds all of fp8
            return torch.from_numpy(np.array(data)).view(ROUNDED[source][0]).half().view(torch.uint16).numpy()
        return convert(data, source, target, rounding)

    return converted


def dotted(dot: Callable) -> Callable:
    """bf16 as fp32: the interpreter would multiply its bits, as if they were whole numbers."""

    def wide(operand: interpreter.TensorHandle) -> interpreter.TensorHandle:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        return interpreter.TensorHandle((operand.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    return lambda self, a, b, d, *options: dot(self, wide(a), wide(b), d, *options)


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
