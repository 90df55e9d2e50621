# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The Ridgepoint authors
"""SwiGLU and GeGLU in Triton, forward and backward: one file to copy. It needs torch 2.11 or newer, and its triton.

    y = silu(gate) * up    with silu(x) = x * sigmoid(x)
    y = gelu(gate) * up    with gelu(x) = x * Phi(x), Phi the normal distribution function, or its tanh approximation

Source: Shazeer, "GLU Variants Improve Transformer", 2020 (https://arxiv.org/abs/2002.05202).

Names: rows (all leading dimensions together) of N columns, `total` elements. Offsets are int64: they pass 2^31.
"""

import functools
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import forward_ad


# --8<-- [start:activation]
@triton.jit
def _activate(x, ACTIVATION: tl.constexpr):
    """f(x) = x * share(x), and its slope f'(x), which costs nothing where it is not used: the compiler drops it."""
    if ACTIVATION == "gelu":
        bell = tl.exp2(x * x * -0.7213475204444817)  # exp(-x^2 / 2)
        tail = bell * _mills(x)
        share = tl.where(x < 0, tail, 1 - tail)
        slope = share + x * bell * 0.3989422804014327
    else:
        u, du = x, 1.0
        if ACTIVATION == "gelu-tanh":  # (1 + tanh(v)) / 2 is sigmoid(2 v)
            u, du = x * (1.5957691216057308 + 0.07135481282553304 * x * x), 1.5957691216057308 + 0.2140644384766 * x * x
        share = 1 / (1 + tl.exp2(u * -1.4426950408889634))
        slope = share + x * share * (1 - share) * du
    return x * share, slope


@triton.jit
def _mills(x):
    """Phi(-|x|) / exp(-x^2 / 2), fitted: off by 1e-7 at 0 and by 1e-6 at 13, where the exponential leaves fp32."""
    t = 1 / (1 + 0.25 * tl.abs(x))
    p = 0.3623279929161072 - 0.09568291902542114 * t
    p = -0.31067103147506714 + p * t
    p = 0.33054032921791077 + p * t
    p = -0.00735325925052166 + p * t
    p = 0.12418360263109207 + p * t
    p = 0.09647118300199509 + p * t
    return 0.00018415650993119925 + p * t


# --8<-- [end:activation]


# --8<-- [start:flat]
@triton.jit
def _load(ptr, places, inside):
    return tl.load(ptr + places, mask=inside).to(tl.float32)


@triton.jit
def _forward_at(gate_ptr, up_ptr, y_ptr, places, inside, ACTIVATION: tl.constexpr):
    gate, up = _load(gate_ptr, places, inside), _load(up_ptr, places, inside)
    tl.store(y_ptr + places, _activate(gate, ACTIVATION)[0] * up, mask=inside)


@triton.jit
def _forward_kernel(gate_ptr, up_ptr, y_ptr, total, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    """Contiguous tensors are one long vector. Reads 2, writes 1."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    places = start + tl.arange(0, BLOCK)
    if start + BLOCK <= total:  # without a mask an access is wide whatever the total
        _forward_at(gate_ptr, up_ptr, y_ptr, places, None, ACTIVATION)
    else:
        _forward_at(gate_ptr, up_ptr, y_ptr, places, places < total, ACTIVATION)


@triton.jit
def _backward_at(dy_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, places, inside, ACTIVATION: tl.constexpr):
    dy, gate, up = _load(dy_ptr, places, inside), _load(gate_ptr, places, inside), _load(up_ptr, places, inside)
    value, slope = _activate(gate, ACTIVATION)
    tl.store(dgate_ptr + places, dy * up * slope, mask=inside)
    tl.store(dup_ptr + places, dy * value, mask=inside)


@triton.jit
def _backward_kernel(
    dy_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, total, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The activation is computed again: reading it would be one read more. Reads 3, writes 2."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    places = start + tl.arange(0, BLOCK)
    if start + BLOCK <= total:
        _backward_at(dy_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, places, None, ACTIVATION)
    else:
        _backward_at(dy_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, places, places < total, ACTIVATION)


# --8<-- [end:flat]


# --8<-- [start:rows]
@triton.jit
def _places(N, total, UNIT: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr):
    """Rows, columns and mask of BLOCK elements when all rows are laid end to end. N and total count UNITs of elements.

    Triton asks whether 16 divides a number, and accesses are 16 bytes wide only if it knows; here 8 is enough.
    """
    units = tl.program_id(0).to(tl.int64 if LONG else tl.int32) * (BLOCK // UNIT) + tl.arange(0, BLOCK // UNIT)
    rows = units // N  # one division for UNIT elements, and 32 bits wide where they can be: 64 take many instructions
    cols = (units - rows * N)[:, None] * UNIT + tl.arange(0, UNIT)[None, :]
    return rows.to(tl.int64)[:, None] * UNIT, cols, (units < total)[:, None]


@triton.jit
def _forward_rows_kernel(
    gate_ptr, up_ptr, y_ptr, gate_stride, up_stride, N, total,
    ACTIVATION: tl.constexpr, UNIT: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows that lie apart, as halves of a fused projection do. Strides count UNITs too. No up: it follows gate."""
    if up_ptr is None:
        up_ptr = gate_ptr + N * UNIT
    rows, cols, inside = _places(N, total, UNIT, LONG, BLOCK)
    gate = _load(gate_ptr, rows * gate_stride + cols, inside)
    up = _load(up_ptr, rows * up_stride + cols, inside)
    tl.store(y_ptr + rows * N + cols, _activate(gate, ACTIVATION)[0] * up, mask=inside)


@triton.jit
def _backward_rows_kernel(
    dy_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, dy_stride, gate_stride, up_stride, grad_stride, N, total,
    ACTIVATION: tl.constexpr, UNIT: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if up_ptr is None:
        up_ptr, dup_ptr = gate_ptr + N * UNIT, dgate_ptr + N * UNIT
    rows, cols, inside = _places(N, total, UNIT, LONG, BLOCK)
    dy = _load(dy_ptr, rows * dy_stride + cols, inside)
    gate = _load(gate_ptr, rows * gate_stride + cols, inside)
    up = _load(up_ptr, rows * up_stride + cols, inside)
    value, slope = _activate(gate, ACTIVATION)
    grads = rows * grad_stride + cols
    tl.store(dgate_ptr + grads, dy * up * slope, mask=inside)
    tl.store(dup_ptr + grads, dy * value, mask=inside)


# --8<-- [end:rows]


# --8<-- [start:launch]
# From sweeps on an H100 and an H200, where from 512 to 8192 elements a program all come close; nothing is tuned at a
# user's first call. Threads, not warps, since an AMD warp has 64. A thread has 8 elements: accesses of 16 bytes in
# bf16.
@functools.cache
def _device(device: torch.device) -> tuple[int, int]:
    """Multiprocessors, and threads a warp."""
    if device.type == "cpu":  # the interpreter
        return 2, 32
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.warp_size


def _options(device: torch.device, threads: int, **constants: int) -> dict[str, int]:
    return {**constants, "num_warps": threads // _device(device)[1]}


@functools.cache
def _forward_launch(N: int, bits: int, device: torch.device) -> dict[str, int]:
    return _options(device, 128, BLOCK=1024)


@functools.cache
def _backward_launch(N: int, bits: int, device: torch.device) -> dict[str, int]:
    return _options(device, 128, BLOCK=1024)


# --8<-- [end:launch]


# --8<-- [start:op]
_MOST = 2**30  # rows, and columns: indices of 32 bits have room for the largest tile beyond


def _checked(N: int) -> None:
    if N > _MOST:
        raise ValueError(f"gate: expected at most {_MOST} columns where the rows of a tensor lie apart, got {N}")


def _rows(t: Tensor) -> tuple[Tensor, int]:
    """Rows of neighbouring columns, and how far apart they are: no copy where the strides allow that."""
    if t.is_contiguous():
        return t, t.shape[-1]
    rows = t.reshape(-1, t.shape[-1])
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    return rows, rows.stride(0)


def _forward_fake(gate: Tensor, up: Tensor | None, activation: str) -> Tensor:
    if up is None:
        return gate.new_empty((*gate.shape[:-1], gate.shape[-1] // 2))
    dtype = None if gate.dtype == up.dtype else torch.promote_types(gate.dtype, up.dtype)
    return torch.empty_like(gate, dtype=dtype, memory_format=torch.contiguous_format)


def _forward(gate: Tensor, up: Tensor | None, activation: str) -> Tensor:
    """Without up, gate is both: halves of its rows."""
    y = _forward_fake(gate, up, activation)
    total = y.numel()
    if total == 0:
        return y
    N = y.shape[-1] if y.dim() else 1
    options = _forward_launch(N, 8 * gate.element_size(), gate.device)
    grid = (-(-total // options["BLOCK"]),)
    with torch.cuda.device_of(gate):  # triton launches on the current device
        if up is not None and gate.is_contiguous() and up.is_contiguous():
            _forward_kernel[grid](gate, up, y, total, activation, **options)
        else:
            _checked(N)
            gate, gate_stride = _rows(gate)
            up, up_stride = (None, gate_stride) if up is None else _rows(up)
            unit = 8 if N % 8 == gate_stride % 8 == up_stride % 8 == 0 else 1
            sizes = gate_stride // unit, up_stride // unit, N // unit, total // unit
            long = sizes[-1] > 2**31 - options["BLOCK"]
            _forward_rows_kernel[grid](gate, up, y, *sizes, activation, UNIT=unit, LONG=long, **options)
    return y


def _backward_fake(dy: Tensor, gate: Tensor, up: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    dgate = torch.empty_like(gate, memory_format=torch.contiguous_format)
    return dgate, gate.new_empty(0) if up is None else torch.empty_like(up, memory_format=torch.contiguous_format)


def _backward(dy: Tensor, gate: Tensor, up: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    """dgate and dup; without up, one gradient for both, of which the kernel fills the halves."""
    dgate, dup = _backward_fake(dy, gate, up, activation)
    total = dy.numel()
    if total == 0:
        return dgate, dup
    N = dy.shape[-1] if dy.dim() else 1
    options = _backward_launch(N, 8 * gate.element_size(), gate.device)
    grid = (-(-total // options["BLOCK"]),)
    with torch.cuda.device_of(gate):
        if up is not None and dy.is_contiguous() and gate.is_contiguous() and up.is_contiguous():
            _backward_kernel[grid](dy, gate, up, dgate, dup, total, activation, **options)
        else:
            _checked(N)
            (dy, dy_stride), (gate, gate_stride) = _rows(dy), _rows(gate)
            up, up_stride = (None, gate_stride) if up is None else _rows(up)
            strides = dy_stride, gate_stride, up_stride, dgate.shape[-1]
            unit = 8 if N % 8 == 0 and all(stride % 8 == 0 for stride in strides) else 1
            sizes = *(stride // unit for stride in strides), N // unit, total // unit
            long = sizes[-1] > 2**31 - options["BLOCK"]
            _backward_rows_kernel[grid](dy, gate, up, dgate, dup, *sizes, activation, UNIT=unit, LONG=long, **options)
    return dgate, dup


# define and impl cost the host less per call than custom_op; fake tensors, torch.compile and opcheck work as well
_namespace = __name__.replace(".", "_")  # another copy of this file, in another package, has another
_library = torch.library.Library(_namespace, "FRAGMENT")
_FORWARD = "(Tensor gate, Tensor? up, str activation) -> Tensor"
_BACKWARD = "(Tensor dy, Tensor gate, Tensor? up, str activation) -> (Tensor, Tensor)"
for _name, _schema, _function, _meta in (
    ("swiglu_forward", _FORWARD, _forward, _forward_fake),
    ("swiglu_forward_eager", _FORWARD, _forward, _forward_fake),  # without a derivative: a Function has it
    ("swiglu_backward", _BACKWARD, _backward, _backward_fake),
    ("swiglu_backward_recorded", _BACKWARD, _backward, _backward_fake),  # refuses to be differentiated
):
    _library.define(_name + _schema)
    for _key in ("CUDA", "CPU"):  # AMD's GPUs are "CUDA" to torch; the CPU is for triton's interpreter
        _library.impl(_name, _function, _key)
    torch.library.register_fake(f"{_namespace}::{_name}", _meta, lib=_library)
_forward_op = getattr(torch.ops, _namespace).swiglu_forward.default
_eager_forward = getattr(torch.ops, _namespace).swiglu_forward_eager.default._op  # __call__ costs 0.3 us
_backward_op = getattr(torch.ops, _namespace).swiglu_backward.default
_recorded_backward = getattr(torch.ops, _namespace).swiglu_backward_recorded.default
# --8<-- [end:op]


# --8<-- [start:autograd]
def _name(activation: str) -> str:
    return "swiglu" if activation == "silu" else "geglu"


# of the innermost call of torch.func, None outside; compiled code is guarded by it
_transforms, _Transform = torch._C._functorch.peek_interpreter_stack, torch._C._functorch.CInterpreter
# Who may be recording: Dynamo, jit.trace, modes of __torch_dispatch__ (make_fx, export), make_fx before autograd.
# They get the operator, derivative and all; eager code takes the shorter way, through the Function alone.
_compiling, _tracing = torch.compiler.is_dynamo_compiling, torch._C._is_tracing
_modes, _included = torch._C._len_torch_dispatch_stack, torch._C._dispatch_tls_is_dispatch_key_included
_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch
_grad_enabled = torch.is_grad_enabled  # found sooner than in torch


def _refuse_transforms(name: str, *tensors: Tensor | None) -> None:
    """Inside torch.func, and for a tensor with a tangent, the operator would return a result without derivatives."""
    unseen = isinstance(_transforms(), _Transform) or torch.compiler.is_compiling()  # there tangents do not show
    if unseen or any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise RuntimeError(f"{name}: expected a call outside torch.func (grad, jvp, vmap, ...) and "
                           "forward-mode AD, got one inside: this kernel has a plain backward only")  # fmt: skip


_ONCE = (
    "{}: expected a backward without create_graph=True, got one with: it would lose the second derivative, which "
    "this kernel does not have"
)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate: Tensor, up: Tensor | None, activation: str, computed: Tensor | None = None) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(gate, up)  # what is there already; the activation is not kept
        ctx.activation = activation
        return _eager_forward(gate, up, activation) if computed is None else computed

    @staticmethod
    def backward(ctx, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return None, None, None, None
        if forward_ad._current_level >= 0:
            _refuse_transforms(_name(ctx.activation), dy)
        if torch.is_grad_enabled():  # not once_differentiable, which lets a dy that needs no gradient pass
            raise RuntimeError(_ONCE.format(_name(ctx.activation)))
        gate, up = ctx.saved_tensors
        backward = _recorded_backward if _compiling() or _modes() else _backward_op
        dgate, dup = backward(dy, gate, up, ctx.activation)
        return dgate, None if up is None else dup, None, None


# Function.apply, but for what that does for torch.func, which is refused: 1.5 us
_apply = super(torch.autograd.Function, _Gated).apply


def _differentiable(gate: Tensor, up: Tensor | None, activation: str) -> Tensor:
    """The operator for autograd: its gradient is in every graph that holds it, whoever recorded that."""
    if forward_ad._current_level >= 0 or isinstance(_transforms(), _Transform):
        _refuse_transforms(_name(activation), gate, up)
    with torch._C._AutoDispatchBelowAutograd():
        y = _forward_op(gate, up, activation)
    needed = torch.is_grad_enabled() and (gate.requires_grad or (up is not None and up.requires_grad))
    return _apply(gate, up, activation, y) if needed else y


class _Once(torch.autograd.Function):
    """The backward's operator for autograd: in a graph, it has a derivative no more than in eager code."""

    @staticmethod
    def forward(ctx, *arguments: object) -> tuple[Tensor, ...]:
        ctx.activation = arguments[-1]
        with torch._C._AutoDispatchBelowAutograd():
            return _recorded_backward(*arguments)

    @staticmethod
    def backward(ctx, *_: Tensor) -> None:
        raise RuntimeError(_ONCE.format(_name(ctx.activation)))


_library.impl("swiglu_forward", _differentiable, "Autograd")
_library.impl("swiglu_backward_recorded", _Once.apply, "Autograd")
# torch's default, for an operator that has no derivative, costs the host 0.3 us
_library.impl("swiglu_forward_eager", torch.library.fallthrough_kernel, "Autograd")


# --8<-- [end:autograd]


_DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # what is most used is found first
_INTERPRETED = not isinstance(_forward_kernel, triton.runtime.JITFunction)


def swiglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """SwiGLU: silu(gate) * up, element by element.

    The function, and the dtypes, of `torch.nn.functional.silu(gate) * up`: computed in fp32 and rounded once. What
    those operators have and this has not: broadcasting, inplace, fp64, a double backward, torch.func and forward-mode
    AD. Of one tensor it takes the halves of the last dimension; F.glu's dim it has not.

    Args:
        gate: any shape, fp32, fp16 or bf16, with any strides; nested, too. Rows without unit stride are copied first.
        up: the shape of gate; its dtype may differ. None where gate holds both, as a fused projection's output does:
            [..., 2 N], gate before up. Then the gradient is one tensor too, and nobody concatenates its halves.

    Returns:
        A new contiguous tensor of that shape ([..., N] without up), of the dtype to which torch promotes both.
        Gradients flow to gate and to up, each in its own dtype.

    Raises:
        TypeError: gate or up is not a tensor of one of these dtypes, or one of them alone is nested.
        ValueError: up has another shape than gate, or is on another device; there is no up, and gate has no even
            last dimension; there are more than 2^30 columns and the rows of a tensor (its halves, without up) lie
            apart; or gate is on a CPU while Triton's interpreter (TRITON_INTERPRET=1) is off.
        RuntimeError: in a backward with create_graph=True, since there is no double backward; inside torch.func (grad,
            jvp, vmap, ...) and in forward-mode AD, which are not supported either.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020 (https://arxiv.org/abs/2002.05202).
    """
    return _gated(gate, up, "silu")


def geglu(gate: Tensor, up: Tensor | None = None, approximate: str = "none") -> Tensor:
    """GeGLU: gelu(gate) * up, element by element.

    The function of `torch.nn.functional.gelu(gate, approximate=approximate) * up`. All else is as in `swiglu`, what is
    missing included.

    Args:
        gate, up: as in `swiglu`.
        approximate: "none" for x * Phi(x), or "tanh" for its approximation.

    Raises:
        ValueError: approximate is neither; and what `swiglu` raises.
    """
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        raise ValueError(f'approximate: expected "none" or "tanh", got {approximate!r}')
    return _gated(gate, up, "gelu" if approximate == "none" else "gelu-tanh")


def _nested(function: Callable[..., Tensor], gate: Tensor, up: Tensor | None) -> Tensor:
    """Of jagged tensors, the function of their values; of strided ones, of their tensors one by one."""
    tensors = (gate,) if up is None else (gate, up)
    if up is not None and (up.is_nested, up.layout) != (gate.is_nested, gate.layout):
        raise TypeError(f"up: expected of layout {gate.layout}, and nested only if gate is, got {up.layout}")
    if gate.layout != torch.jagged:
        if up is not None and up.size(0) != gate.size(0):
            raise ValueError(f"up: expected {gate.size(0)} tensors, as gate has, got {up.size(0)}")
        every = zip(*(t.unbind() for t in tensors), strict=True)
        return torch.nested.as_nested_tensor([function(*each) for each in every])
    if up is not None and up.shape != gate.shape:
        raise ValueError(f"up: expected shape {list(gate.shape)}, as gate has, got {list(up.shape)}")
    if up is None and gate._ragged_idx == gate.dim() - 1:
        raise ValueError("gate: expected rows of one length, got a jagged tensor whose last dimension is ragged")
    y = function(*(t.values() for t in tensors))
    return torch.nested.nested_tensor_from_jagged(y, gate.offsets(), gate.lengths(), gate._ragged_idx)


def _wrong_type(name: str, t: object) -> TypeError:
    got = t.dtype if isinstance(t, Tensor) else type(t)
    return TypeError(f"{name}: expected an fp32, fp16 or bf16 tensor, got {got}")


def _gated(gate: Tensor, up: Tensor | None, activation: str) -> Tensor:
    if not isinstance(gate, Tensor) or gate.dtype not in _DTYPES:
        raise _wrong_type("gate", gate)
    if up is not None and (not isinstance(up, Tensor) or up.dtype not in _DTYPES):
        raise _wrong_type("up", up)
    if gate.is_nested or (up is not None and up.is_nested):
        return _nested(lambda gate, up=None: _gated(gate, up, activation), gate, up)
    if up is None:
        if gate.dim() == 0 or gate.shape[-1] % 2:
            raise ValueError(f"gate: expected an even last dimension, for gate and up, got shape {list(gate.shape)}")
    elif up.shape != gate.shape:
        raise ValueError(f"up: expected shape {list(gate.shape)}, as gate has, got {list(up.shape)}")
    elif up.device != gate.device:
        raise ValueError(f"up: expected on {gate.device}, where gate is, got {up.device}")
    if gate.is_cpu and not _INTERPRETED:
        raise ValueError("gate: expected a GPU tensor, got one on the CPU (which needs TRITON_INTERPRET=1)")
    if forward_ad._current_level >= 0 or (_transforms() is not None and isinstance(_transforms(), _Transform)):
        _refuse_transforms(_name(activation), gate, up)
    needed = _grad_enabled() and (gate.requires_grad or (up is not None and up.requires_grad))
    if _compiling() or _modes() or _tracing() or _included(_PRE_DISPATCH):
        return _forward_op(gate, up, activation)
    if needed:
        return _apply(gate, up, activation)
    return _eager_forward(gate, up, activation)
