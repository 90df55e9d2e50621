"""tests/kernels/interpreter.py, recorded.py: what is done once gives what Triton's interpreter gives."""

import math
import os

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("the interpreter is not used", allow_module_level=True)

from triton.runtime import interpreter as triton_interpreter

from tests.kernels import interpreter, recorded


@triton.jit
def _twice(x):
    return x + x


@triton.jit
def _twice_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, _twice(tl.load(x_ptr + at)))


@triton.jit
def _sum_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    tl.store(y_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, BLOCK)), axis=0))


def test_bf16_is_what_torch_has():
    """Every bf16, and fp32 on either side of what rounds to it: ties, the largest, infinities, NaN."""
    bits = torch.arange(2**16, dtype=torch.int32)
    wide = (bits << 16).numpy().view(np.uint32)
    up = triton_interpreter._convert_float(bits.numpy().astype(np.uint16), tl.bfloat16, tl.float32, None)
    assert np.array_equal(up, wide)
    for further in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        numbers = (wide + np.uint32(further)).view(np.float32)
        down = triton_interpreter._convert_float(numbers, tl.float32, tl.bfloat16, None)
        expected = torch.from_numpy(numbers).to(torch.bfloat16)
        assert torch.equal(torch.from_numpy(down.view(np.int16)), expected.view(torch.int16))


@pytest.mark.parametrize(
    "name, dtype", (("float16", torch.float16), ("float8e4nv", torch.float8_e4m3fn), ("float8e5", torch.float8_e5m2))
)
def test_fp16_and_fp8_are_rounded_as_on_a_gpu(name, dtype):
    """Every bf16, and fp32 on either side of ties. A GPU's fp8 ends at its largest number, where torch's overflows."""
    wide = (torch.arange(2**16, dtype=torch.int32) << 16).numpy().view(np.uint32)
    for further in (0, 1, 0x7FFF, 0x8000, 0xFFFF):
        numbers = torch.from_numpy((wide + np.uint32(further)).view(np.float32))
        down = triton_interpreter._convert_float(numbers.numpy(), tl.float32, getattr(tl, name), None)
        most = torch.inf if dtype == torch.float16 else torch.finfo(dtype).max
        expected = numbers.clamp(-most, most).to(dtype)
        assert np.array_equal(down, expected.view(torch.uint8 if expected.itemsize == 1 else torch.uint16).numpy())
        if dtype != torch.float16:
            up = triton_interpreter._convert_float(down, getattr(tl, name), tl.float16, None).view(np.float16)
            assert np.array_equal(up, expected.half().numpy(), equal_nan=True)


def test_erf_is_that_of_the_standard_library():
    x = np.linspace(-6, 6, 10001, dtype=np.float32)
    assert np.array_equal(interpreter.erf(x), np.array([math.erf(number) for number in x], dtype=np.float32))


def test_the_language_is_whole_again_after_a_launch():
    before = tl.load, tl.core.load, tl.tensor.__add__, tl.sum
    x, y = torch.arange(64.0), torch.empty(64)
    _twice_kernel[(4,)](x, y, BLOCK=16)
    _sum_kernel[(1,)](x, y[:1], BLOCK=64)
    assert y[0] == x.sum() and torch.equal(y[1:], 2 * x[1:])
    assert (tl.load, tl.core.load, tl.tensor.__add__, tl.sum) == before


@triton.jit
def _copy_kernel(x_ptr, y_ptr, row, step, count, other, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows, columns = tl.arange(0, ROWS)[:, None] * row, tl.arange(0, BLOCK)[None, :]
    inside = (rows // row * BLOCK + columns < count) & (columns != other)
    x = tl.load(x_ptr + rows + columns * step, mask=inside, other=7.0)
    tl.store(y_ptr + rows + columns * step, x, mask=inside)
    tl.store(y_ptr + 30000 + tl.arange(0, ROWS)[:, None] * BLOCK + columns, x)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int64, torch.int8), ids=str)
@pytest.mark.parametrize(
    "row, step, count, other",
    (
        (1024, 1, 4096, -1),  # one piece
        (1024, 1, 2500, -1),  # up to the middle of a row
        (1500, 1, 2500, -1),  # rows apart
        (1500, 1, 4096, 3),  # a hole in each row
        (5000, 2, 4096, -1),  # every other number
        (500, 1, 4096, -1),  # rows that overlap
        (1024, 1, 0, -1),  # nothing
    ),
)
def test_memory_is_read_and_written_as_number_by_number(row, step, count, other, dtype, monkeypatch):
    x = torch.arange(40000).remainder(101).to(dtype)
    found = []
    for at_once in (True, False):
        y = torch.full((40000,), 5, dtype=dtype)
        if not at_once:
            monkeypatch.setattr(interpreter, "side_by_side", lambda *_: None)
        _copy_kernel[(1,)](x, y, row, step, count, other, ROWS=4, BLOCK=1024)
        found.append(y)
    assert torch.equal(*found)
    expected = x.as_strided((4, 1024), (row, step)).reshape(-1).clone()
    expected[count:] = 7
    if other >= 0:
        expected[other::1024] = 7
    assert torch.equal(found[0][30000:34096], expected)


@pytest.mark.parametrize("watched", (False, True))
def test_overflow_is_an_error_where_it_is_watched(watched):
    x, y = torch.full((16,), 2**30, dtype=torch.int32), torch.zeros(16, dtype=torch.int32)
    interpreter.watch_overflow(watched)
    if watched:
        with pytest.raises(triton_interpreter.InterpreterError, match="overflow detected"):
            _twice_kernel[(1,)](x, y, BLOCK=16)
    else:
        _twice_kernel[(1,)](x, y, BLOCK=16)
        assert (y == -(2**31)).all()


@triton.jit
def _builtins_kernel(x_ptr, y_ptr, results_ptr, n, scalar, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + at, mask=at < n, other=-1.0), tl.load(y_ptr + at, other=-1.0, mask=at < n)
    first, second = tl.split(tl.join(x, y))
    counted = tl.zeros([BLOCK], tl.float32)
    for number in range(3):
        counted += number * tl.arange(0, BLOCK)
    results = x * x, x * y, x * 0 + 1, x * 0.5, first - second, tl.where(x > y, x, scalar), counted
    for number in tl.static_range(7):
        tl.store(results_ptr + number * n + at, results[number], mask=at < n)
    tl.store(results_ptr + 7 * n + at, scalar * scalar, mask=at < n)
    tl.store(results_ptr + 8 * n + at, tl.full([BLOCK], tl.program_id(0), tl.float32), mask=at < n)


def test_what_is_recorded_of_one_call_holds_for_the_next():
    """Programs and launches with other numbers; the first one of all is recorded."""
    for seed, scalar in ((0, 3.0), (1, 5.0)):
        x, y = torch.rand(2, 40, generator=torch.Generator().manual_seed(seed)) + 1
        results = torch.zeros(9, 40)
        _builtins_kernel[(3,)](x, y, results, 40, scalar, BLOCK=16)
        counted = 3.0 * torch.arange(40).remainder(16)
        expected = x * x, x * y, 0 * x + 1, x / 2, x - y, torch.where(x > y, x, scalar), counted
        assert torch.equal(results, torch.stack((*expected, torch.full((40,), scalar**2), torch.arange(40) // 16)))


def test_what_is_computed_beside_the_builder_is_no_constant():
    def one_more(x, _semantic):
        beside = triton_interpreter.TensorHandle(x.handle.data + 1, x.handle.dtype)
        return _semantic.add(tl.tensor(beside, x.type), x, False)

    for number in (1, 2):
        handle = triton_interpreter.TensorHandle(np.array([number], np.float32), tl.float32)
        returned = recorded.recorded(one_more)(tl.tensor(handle, tl.float32))
        assert returned.handle.data.tolist() == [2 * number + 1]


def test_a_part_that_is_missing_is_named(monkeypatch):
    monkeypatch.delattr(triton_interpreter, "np_erf_fp32")
    with pytest.raises(RuntimeError, match=r"triton .*: its interpreter has no np_erf_fp32"):
        interpreter.install()
