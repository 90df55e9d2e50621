# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The Ridgepoint authors
"""Rotary position embedding in Triton, forward and backward: one file to copy. It needs torch 2.11 or newer, and its
triton.

    out = t * cos + rotate_half(t) * sin    with rotate_half([t1, t2]) = [-t2, t1], for t = q and t = k

Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021
(https://arxiv.org/abs/2104.09864), with the pairs half a head apart, as Hugging Face's Llama has them.

Names: B * S tokens; H heads of q and K of k, each of D = 2 * HALF elements. A chunk is VEC neighbours of a half: what
one access moves. Offsets are int64: they pass 2^31.
"""

import functools
import itertools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import forward_ad


# --8<-- [start:tile]
@triton.jit
def _known(stride, VEC: tl.constexpr):
    """The stride, in a form that shows the compiler what the host has made sure of: VEC divides it."""
    return (stride // VEC * VEC).to(tl.int64)


@triton.jit
def _tile(
    t_ptr, out_ptr, cos_ptr, sin_ptr,
    t_b, t_h, t_s, out_b, out_h, out_s, cos_b, cos_s, sin_b, sin_s, program, chunks, S,
    H: tl.constexpr, BACKWARD: tl.constexpr, HALF: tl.constexpr, VEC: tl.constexpr,
    CHUNKS: tl.constexpr, HEADS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """CHUNKS chunks of HEADS * STEPS heads. A thread has one chunk of STEPS heads, both halves."""
    GROUPS: tl.constexpr = (H + HEADS * STEPS - 1) // (HEADS * STEPS)
    A_HALF: tl.constexpr = HALF // VEC  # in chunks
    head = (program % GROUPS * (HEADS * STEPS) + tl.arange(0, HEADS))[:, None, None]
    start = (program // GROUPS).to(chunks.dtype) * CHUNKS
    index = tl.arange(0, CHUNKS)
    inside = (index < chunks - start)[None, :, None]
    index += (start % A_HALF).to(tl.int32)
    token = (start // A_HALF + index // A_HALF)[None, :, None]
    b, s = (token // S).to(tl.int64), (token % S).to(tl.int64)
    column = (index % A_HALF * VEC)[None, :, None] + tl.arange(0, VEC)[None, None, :]
    t_h, out_h = _known(t_h, VEC), _known(out_h, VEC)
    t = t_ptr + (b * _known(t_b, VEC) + s * _known(t_s, VEC) + column + head.to(tl.int64) * t_h)
    out = out_ptr + (b * _known(out_b, VEC) + s * _known(out_s, VEC) + column + head.to(tl.int64) * out_h)
    cos = cos_ptr + (b * _known(cos_b, VEC) + s * _known(cos_s, VEC) + column + head * 0)
    sin = sin_ptr + (b * _known(sin_b, VEC) + s * _known(sin_s, VEC) + column + head * 0)
    t_1s, t_2s = (), ()
    for step in tl.static_range(STEPS):  # all loads are under way before the first result is needed
        here = inside & (head + step * HEADS < H)
        t_1s = t_1s + (tl.load(t + step * HEADS * t_h, mask=here),)
        t_2s = t_2s + (tl.load(t + step * HEADS * t_h + HALF, mask=here),)
    known = inside & (head < H)  # the loads from memory first, then these, from a cache
    c_1, c_2 = tl.load(cos, mask=known), tl.load(cos + HALF, mask=known)
    s_1, s_2 = tl.load(sin, mask=known), tl.load(sin + HALF, mask=known)
    c_1, c_2, s_1, s_2 = c_1.to(tl.float32), c_2.to(tl.float32), s_1.to(tl.float32), s_2.to(tl.float32)
    if BACKWARD:  # the transposed matrix; where both halves of sin are the same, the rotation by the negative angle
        s_1, s_2 = -s_2, -s_1
    for step in tl.static_range(STEPS):
        here = inside & (head + step * HEADS < H)
        t_1, t_2 = t_1s[step].to(tl.float32), t_2s[step].to(tl.float32)
        tl.store(out + step * HEADS * out_h, t_1 * c_1 - t_2 * s_1, mask=here)
        tl.store(out + step * HEADS * out_h + HALF, t_2 * c_2 + t_1 * s_2, mask=here)


# --8<-- [end:tile]


# --8<-- [start:kernel]
_STRIDES = [f"{t}_{dim}" for t in ("q", "k", "q_out", "k_out") for dim in "bhs"]
_STRIDES += [f"{t}_{dim}" for t in ("cos", "sin") for dim in "bs"]


@triton.jit(do_not_specialize=[*_STRIDES, "chunks", "S", "q_programs"])  # VEC says what there is to know
def _rope_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr,
    q_b, q_h, q_s, k_b, k_h, k_s, q_out_b, q_out_h, q_out_s, k_out_b, k_out_h, k_out_s, cos_b, cos_s, sin_b, sin_s,
    chunks, S, q_programs,
    H: tl.constexpr, K: tl.constexpr, BACKWARD: tl.constexpr, HALF: tl.constexpr, VEC: tl.constexpr,
    TILE: tl.constexpr, Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """The first programs rotate q, the others k. Reads q and k, writes q_out and k_out."""
    program = tl.program_id(0)
    if program < q_programs:
        _tile(
            q_ptr, q_out_ptr, cos_ptr, sin_ptr,
            q_b, q_h, q_s, q_out_b, q_out_h, q_out_s, cos_b, cos_s, sin_b, sin_s, program, chunks, S,
            H, BACKWARD, HALF, VEC, TILE // Q_HEADS, Q_HEADS, STEPS,
        )  # fmt: skip
    else:
        _tile(
            k_ptr, k_out_ptr, cos_ptr, sin_ptr,
            k_b, k_h, k_s, k_out_b, k_out_h, k_out_s, cos_b, cos_s, sin_b, sin_s, program - q_programs, chunks, S,
            K, BACKWARD, HALF, VEC, TILE // K_HEADS, K_HEADS, STEPS,
        )  # fmt: skip


# --8<-- [end:kernel]


# --8<-- [start:launch]
# Chosen by head dimension from sweeps on an H100 and an H200; nothing is tuned at a user's first call. Threads, not
# warps, since an AMD warp has 64. A thread has one chunk of HEADS heads, and of 2-byte numbers 8 in a chunk: accesses
# of 16 bytes.
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
    if N % 32:  # halves that end within a 32-byte sector of memory: more of them in a program share more of those
        return _options(device, 256, VEC=128 // bits, TILE=256, HEADS=2, STEPS=4)
    threads = 128 if 64 < N < 256 else 512
    return _options(device, threads, VEC=128 // bits, TILE=threads, HEADS=2, STEPS=4)


@functools.cache
def _backward_launch(N: int, bits: int, device: torch.device) -> dict[str, int]:
    return _options(device, 128, VEC=128 // bits, TILE=128, HEADS=2, STEPS=2)


@functools.cache
def _across(H: int, HEADS: int, STEPS: int) -> tuple[int, int]:
    """Heads next to each other in a tile, so that tiles end where the heads do, and tiles above each other."""
    while HEADS > 1 and H % (HEADS * STEPS):
        HEADS //= 2
    return HEADS, -(-H // (HEADS * STEPS))


# --8<-- [end:launch]


# --8<-- [start:layout]
# How batch, heads and tokens (0, 1, 2) follow each other in memory; the head's elements always stand side by side.
_ORDERS = tuple(itertools.permutations(range(3)))


def _order(t: Tensor) -> int:
    """The place in _ORDERS of the order that the strides have."""
    strides = t.stride()
    b, h, s = strides[:3]
    if b >= s > h:
        return 1  # a projection's (B, S, H, D), transposed
    if b >= h >= s:
        return 0  # contiguous
    return _ORDERS.index(tuple(sorted(range(3), key=lambda dim: -strides[dim])))


def _empty(t: Tensor, dtype: torch.dtype, order: int) -> Tensor:
    """Memory of the shape of t, without gaps, in this order. Not empty_like: fake tensors must agree on the strides."""
    _, H, S, D = t.shape
    if order == 0:
        strides = (H * S * D, S * D, D, 1)
    elif order == 1:
        strides = (S * H * D, D, H * D, 1)
    else:
        sizes, strides, step = t.shape, [0, 0, 0, 1], D
        for dim in reversed(_ORDERS[order]):
            strides[dim], step = step, step * sizes[dim]
    return t.new_empty_strided(t.shape, strides, dtype=dtype)


# --8<-- [end:layout]


# --8<-- [start:op]
_MOST = 2**30  # indices of 32 bits have room for the largest tile beyond


def _fake(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor,
    q_dtype: torch.dtype, k_dtype: torch.dtype, q_order: int, k_order: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _empty(q, q_dtype, q_order), _empty(k, k_dtype, k_order)


def _forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor,
    q_dtype: torch.dtype, k_dtype: torch.dtype, q_order: int, k_order: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    options = _forward_launch(q.shape[3], 8 * q.element_size(), q.device)
    return _launch(q, k, cos, sin, *_fake(q, k, cos, sin, q_dtype, k_dtype, q_order, k_order), False, **options)


def _backward(
    dq: Tensor, dk: Tensor, cos: Tensor, sin: Tensor,
    q_dtype: torch.dtype, k_dtype: torch.dtype, q_order: int, k_order: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """From the gradients of the results to those of q and k."""
    options = _backward_launch(dq.shape[3], 8 * dq.element_size(), dq.device)
    return _launch(dq, dk, cos, sin, *_fake(dq, dk, cos, sin, q_dtype, k_dtype, q_order, k_order), True, **options)


def _side_by_side(t: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """t with the elements of a head side by side, and its other strides: transposed views run as they are."""
    strides = t.stride()
    if strides[-1] == 1:
        return t, strides[:-1]
    t = t.contiguous()
    return t, t.stride()[:-1]


def _launch(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, q_out: Tensor, k_out: Tensor, backward: bool,
    VEC: int, TILE: int, HEADS: int, STEPS: int, **options: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    B, H, S, D = q.shape
    K = k.shape[1]
    if B * S * D * (H + K) == 0:
        return q_out, k_out
    (q, q_strides), (k, k_strides), (cos, cos_strides), (sin, sin_strides) = map(_side_by_side, (q, k, cos, sin))
    cos_b, sin_b = cos_strides[0] if cos.shape[0] > 1 else 0, sin_strides[0] if sin.shape[0] > 1 else 0
    out_strides = *q_out.stride()[:3], *k_out.stride()[:3]
    strides = (*q_strides, *k_strides, *out_strides, cos_b, cos_strides[1], sin_b, sin_strides[1])
    VEC = math.gcd(VEC, D // 2, *strides)  # neighbours that stay neighbours, and aligned, whatever is added to them
    chunks = B * S * (D // 2 // VEC)
    if max(chunks, H, K, D // 2) > _MOST:
        raise ValueError(f"q: expected at most {_MOST} heads, pairs of numbers in a head, and chunks of {VEC} pairs in "
                         f"all tokens, got {max(H, K)}, {D // 2} and {chunks}")  # fmt: skip
    if chunks * (H + K) < TILE * STEPS * _device(q.device)[0]:  # too few programs for all multiprocessors
        TILE, HEADS, STEPS, options = 64, 2, 2, _options(q.device, 64)
    # a tile's threads go along what is side by side in memory: the heads of a token, or else the tokens of a head
    inside = HEADS if q_strides[1] < q_strides[2] else 1
    (q_heads, q_groups), (k_heads, k_groups) = _across(H, inside, STEPS), _across(K, inside, STEPS)
    q_programs, k_programs = -(-chunks * q_heads // TILE), -(-chunks * k_heads // TILE)
    q_programs, k_programs = q_programs * q_groups, k_programs * k_groups
    with torch.cuda.device_of(q):  # triton launches on the current device
        _rope_kernel[(q_programs + k_programs,)](
            q, k, cos, sin, q_out, k_out, *strides, chunks, S, q_programs, H=H or 1, K=K or 1, BACKWARD=backward,
            HALF=D // 2, VEC=VEC, TILE=TILE, Q_HEADS=q_heads, K_HEADS=k_heads, STEPS=STEPS, **options,
        )  # fmt: skip
    return q_out, k_out


# define and impl cost the host less per call than custom_op; fake tensors, torch.compile and opcheck work as well
_namespace = __name__.replace(".", "_")  # another copy of this file, in another package, has another
_library = torch.library.Library(_namespace, "FRAGMENT")
_SCHEMA = (
    "(Tensor q, Tensor k, Tensor cos, Tensor sin, ScalarType q_dtype, ScalarType k_dtype, int q_order, int k_order)"
    " -> (Tensor, Tensor)"
)
for _name, _function in (
    ("rope_forward", _forward),
    ("rope_forward_eager", _forward),  # without a derivative: a Function has it
    ("rope_backward", _backward),
    ("rope_backward_recorded", _backward),  # refuses to be differentiated
):
    _library.define(_name + _SCHEMA)
    for _key in ("CUDA", "CPU"):  # AMD's GPUs are "CUDA" to torch; the CPU is for triton's interpreter
        _library.impl(_name, _function, _key)
    torch.library.register_fake(f"{_namespace}::{_name}", _fake, lib=_library)
_forward_op = getattr(torch.ops, _namespace).rope_forward.default
_eager_forward = getattr(torch.ops, _namespace).rope_forward_eager.default._op  # __call__ costs 0.3 us
_backward_op = getattr(torch.ops, _namespace).rope_backward.default
_recorded_backward = getattr(torch.ops, _namespace).rope_backward_recorded.default
# --8<-- [end:op]


# --8<-- [start:autograd]
# of the innermost call of torch.func, None outside; compiled code is guarded by it
_transforms, _Transform = torch._C._functorch.peek_interpreter_stack, torch._C._functorch.CInterpreter
# Who may be recording: Dynamo, jit.trace, modes of __torch_dispatch__ (make_fx, export), make_fx before autograd.
# They get the operator, derivative and all; eager code takes the shorter way, through the Function alone.
_compiling, _tracing = torch.compiler.is_dynamo_compiling, torch._C._is_tracing
_modes, _included = torch._C._len_torch_dispatch_stack, torch._C._dispatch_tls_is_dispatch_key_included
_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch
_grad_enabled = torch.is_grad_enabled  # found sooner than in torch


def _refuse_transforms(*tensors: Tensor | None) -> None:
    """Inside torch.func, and for a tensor with a tangent, the operator would return a result without derivatives."""
    unseen = isinstance(_transforms(), _Transform) or torch.compiler.is_compiling()  # there tangents do not show
    if unseen or any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise RuntimeError("rope: expected a call outside torch.func (grad, jvp, vmap, ...) and "
                           "forward-mode AD, got one inside: this kernel has a plain backward only")  # fmt: skip


_ONCE = (
    "rope: expected a backward without create_graph=True, got one with: it would lose the second derivative, "
    "which this kernel does not have"
)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, q_dtype: torch.dtype, k_dtype: torch.dtype,
        computed: tuple[Tensor, ...] = (),
    ) -> tuple[Tensor, ...]:  # fmt: skip
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(cos, sin)  # not q and not k: the gradient does not depend on them
        ctx.to = q.dtype, k.dtype, _order(q), _order(k)
        return computed or _eager_forward(q, k, cos, sin, q_dtype, k_dtype, *ctx.to[2:])

    @staticmethod
    def backward(ctx, dq: Tensor | None, dk: Tensor | None) -> tuple[Tensor | None, ...]:
        if dq is None and dk is None:
            return (None,) * 7
        if forward_ad._current_level >= 0:
            _refuse_transforms(dq, dk)
        if torch.is_grad_enabled():  # not once_differentiable, which lets a dq that needs no gradient pass
            raise RuntimeError(_ONCE)
        backward = _recorded_backward if _compiling() or _modes() else _backward_op
        if dq is None:  # its output was not used: nothing is rotated but dk
            return None, backward(dk[:, :0], dk, *ctx.saved_tensors, *ctx.to)[1], None, None, None, None, None
        if dk is None:
            return backward(dq, dq[:, :0], *ctx.saved_tensors, *ctx.to)[0], None, None, None, None, None, None
        return *backward(dq, dk, *ctx.saved_tensors, *ctx.to), None, None, None, None, None


# Function.apply, but for what that does for torch.func, which is refused: 1.5 us
_apply = super(torch.autograd.Function, _Rope).apply


def _differentiable(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor,
    q_dtype: torch.dtype, k_dtype: torch.dtype, q_order: int, k_order: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The operator for autograd: its gradient is in every graph that holds it, whoever recorded that."""
    if forward_ad._current_level >= 0 or isinstance(_transforms(), _Transform):
        _refuse_transforms(q, k, cos, sin)
    with torch._C._AutoDispatchBelowAutograd():
        computed = _forward_op(q, k, cos, sin, q_dtype, k_dtype, q_order, k_order)
    needed = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)
    return _apply(q, k, cos, sin, q_dtype, k_dtype, computed) if needed else computed


class _Once(torch.autograd.Function):
    """The backward's operator for autograd: in a graph, it has a derivative no more than in eager code."""

    @staticmethod
    def forward(ctx, *arguments: object) -> tuple[Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            return _recorded_backward(*arguments)

    @staticmethod
    def backward(ctx, *_: Tensor) -> None:
        raise RuntimeError(_ONCE)


_library.impl("rope_forward", _differentiable, "Autograd")
_library.impl("rope_backward_recorded", _Once.apply, "Autograd")
# torch's default, for an operator that has no derivative, costs the host 0.3 us
_library.impl("rope_forward_eager", torch.library.fallthrough_kernel, "Autograd")


# --8<-- [end:autograd]


_DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # what is most used is found first
_INTERPRETED = not isinstance(_rope_kernel, triton.runtime.JITFunction)


def _wrong_type(name: str, t: object) -> TypeError:
    got = t.dtype if isinstance(t, Tensor) else type(t)
    return TypeError(f"{name}: expected an fp32, fp16 or bf16 tensor, got {got}")


def _refuse_tensors(**tensors: object) -> None:
    """The first that is none of ours, by its name."""
    for name, t in tensors.items():
        if not isinstance(t, Tensor) or t.dtype not in _DTYPES:
            raise _wrong_type(name, t)
        if t.is_nested:  # nor do PyTorch's operators multiply one by a table
            raise TypeError(f"{name}: expected a plain tensor, got a nested one")


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary position embedding of queries and keys: t * cos + rotate_half(t) * sin, where t is q, then k.

    rotate_half([t1, t2]) = [-t2, t1], for the halves of each head. The function, and the dtypes, of those operators in
    PyTorch with cos and sin unsqueezed to (1 or B, 1, S, D), under autocast too: computed in fp32 and rounded once, to
    the dtype that PyTorch promotes t, cos and sin to. What those operators have and this has not: gradients of cos and
    sin, tables of any other shape than below, fp64, a double backward, torch.func and forward-mode AD; and it rotates
    whole heads, in halves, not a part of a head, nor neighbours as pairs.

    Args:
        q: (B, H, S, D) with D even, fp32, fp16 or bf16, with any strides. If those of D are not 1, it is copied first.
        k: (B, K, S, D), likewise; K and the dtype may differ from those of q.
        cos: (1 or B, S, D), fp32, fp16 or bf16, full width: its two halves may differ.
        sin: likewise. Neither gets a gradient.

    Returns:
        New tensors of the shapes of q and k, without gaps, in the order of dimensions that q and k have in memory: a
        transposed view of (B, S, H, D) comes back as one. Gradients flow to q and to k, in the dtype and order of each.

    Raises:
        TypeError: q, k, cos or sin is not a tensor of one of these dtypes, or is nested.
        ValueError: a shape is not as above; there are more than 2^30 heads, pairs of numbers in a head, or chunks in
            all B * S tokens (of 8 pairs in 16 bits, of fewer in fp32 or where 8 does not divide D / 2 and all strides);
            k, cos or sin is on another device than q; cos or sin requires a gradient; or q is on a CPU while Triton's
            interpreter (TRITON_INTERPRET=1) is off.
        RuntimeError: in a backward with create_graph=True, since there is no double backward; inside torch.func (grad,
            jvp, vmap, ...) and in forward-mode AD, which are not supported either.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021
    (https://arxiv.org/abs/2104.09864).
    """
    for t in (q, k, cos, sin):
        if not isinstance(t, Tensor) or t.dtype not in _DTYPES or t.is_nested:
            _refuse_tensors(q=q, k=k, cos=cos, sin=sin)
    shape = q.shape
    if len(shape) != 4 or shape[3] % 2:
        raise ValueError(f"q: expected shape (B, H, S, D) with D even, got {list(shape)}")
    B, H, S, D = shape
    shape = k.shape
    if len(shape) != 4 or shape != (B, shape[1], S, D):
        raise ValueError(f"k: expected shape ({B}, K, {S}, {D}), where q has ({B}, {H}, {S}, {D}), got {list(shape)}")
    device = q.device
    for name, shape in (("cos", cos.shape), ("sin", sin.shape)):
        if shape != (1, S, D) and shape != (B, S, D):
            raise ValueError(f"{name}: expected shape (1 or {B}, {S}, {D}), where q has ({B}, {H}, {S}, {D}), "
                             f"got {list(shape)}")  # fmt: skip
    for name, t in () if device == k.device == cos.device == sin.device else (("k", k), ("cos", cos), ("sin", sin)):
        if t.device != device:
            raise ValueError(f"{name}: expected on {device}, where q is, got {t.device}")
    if not _INTERPRETED and device.type == "cpu":
        raise ValueError("q: expected a GPU tensor, got one on the CPU (which needs TRITON_INTERPRET=1)")
    if forward_ad._current_level >= 0 or (_transforms() is not None and isinstance(_transforms(), _Transform)):
        _refuse_transforms(q, k, cos, sin)
    q_dtype, k_dtype = q.dtype, k.dtype
    if not q_dtype == k_dtype == cos.dtype == sin.dtype:
        table = torch.promote_types(cos.dtype, sin.dtype)
        q_dtype, k_dtype = torch.promote_types(q_dtype, table), torch.promote_types(k_dtype, table)
    enabled = _grad_enabled()
    if enabled and (cos.requires_grad or sin.requires_grad):
        name = "cos" if cos.requires_grad else "sin"
        raise ValueError(f"{name}: expected a tensor that does not require a gradient, got one that does: rope has "
                         "none for it; pass it detached")  # fmt: skip
    needed = enabled and (q.requires_grad or k.requires_grad)
    if _compiling() or _modes() or _tracing() or _included(_PRE_DISPATCH):
        return _forward_op(q, k, cos, sin, q_dtype, k_dtype, _order(q), _order(k))
    if needed:
        return _apply(q, k, cos, sin, q_dtype, k_dtype)
    return _eager_forward(q, k, cos, sin, q_dtype, k_dtype, _order(q), _order(k))
