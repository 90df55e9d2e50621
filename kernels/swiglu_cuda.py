# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The Ridgepoint authors
"""SwiGLU and GeGLU in CUDA C++, forward and backward: this file and swiglu.cu to copy. They need torch 2.11 or newer
for CUDA, which brings cuda-bindings and NVIDIA's run-time compiler, and a GPU of compute capability 8.0 or higher.

    y = silu(gate) * up    with silu(x) = x * sigmoid(x)
    y = gelu(gate) * up    with gelu(x) = x * Phi(x), Phi the normal distribution function, or its tanh approximation

Source: Shazeer, "GLU Variants Improve Transformer", 2020 (https://arxiv.org/abs/2002.05202).

Names: rows (all leading dimensions together) of N columns, `total` elements.
"""

import ctypes
import functools
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd import forward_ad

_SOURCE = Path(__file__).with_name("swiglu.cu")


# --8<-- [start:compile]
@functools.cache
def _cubin(arch: str, macros: tuple[str, ...]) -> bytes:
    """Machine code for one kind of GPU, by NVRTC, or by a toolkit's nvcc where the libraries are not there.

    Raises:
        FileNotFoundError: the source is not beside this file.
        ImportError: there is neither compiler.
        RuntimeError: the source does not compile.
    """
    if not _SOURCE.is_file():
        raise FileNotFoundError(f"{_SOURCE}: expected beside {Path(__file__).name}: copy both files")
    options = [f"-arch={arch}", "-std=c++17", "-lineinfo", *(f"-D{macro}" for macro in macros)]
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):  # the second where there is no libnvrtc
        return _by_nvcc(options)
    program = _done(*nvrtc.nvrtcCreateProgram(_SOURCE.read_bytes(), _SOURCE.name.encode(), 0, [], []))
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if error:
        log = bytes(_done(*nvrtc.nvrtcGetProgramLogSize(program)))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.decode())
    cubin = bytes(_done(*nvrtc.nvrtcGetCUBINSize(program)))  # to be written over
    _done(*nvrtc.nvrtcGetCUBIN(program, cubin))
    _done(*nvrtc.nvrtcDestroyProgram(program))
    return cubin


def _by_nvcc(options: list[str]) -> bytes:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise ImportError("CUDA C++: expected cuda-bindings and NVRTC, which torch's CUDA builds bring, or nvcc on the "
                          "PATH, got none")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernels.cubin"
        subprocess.run([nvcc, *options, "-cubin", "-o", out, _SOURCE], check=True)
        return out.read_bytes()


# --8<-- [end:compile]


# --8<-- [start:launch]
class _Slots(threading.local):
    """Where a thread puts a launch's arguments, each in 8 bytes, and the pointers to them that the driver wants."""

    def __init__(self):
        self.values = ctypes.create_string_buffer(8 * 16)
        self.pointers = (ctypes.c_void_p * 16)(*(ctypes.addressof(self.values) + 8 * i for i in range(16)))
        self.address = ctypes.addressof(self.pointers)


_slots = _Slots()


class _Kernel:
    """One function of a cubin, for one device. A call costs the host a fraction of one through Triton's launcher: what
    does not change between calls is made here, once."""

    def __init__(self, cubin: bytes, name: str, form: str, threads: int, shared: int, device: int):
        from cuda.bindings import driver

        self.pack = struct.Struct(form).pack_into
        self.threads, self.shared, self.device = threads, shared, device
        self.library = _done(*driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0))
        self.function = driver.CUfunction(int(_done(*driver.cuLibraryGetKernel(self.library, name.encode()))))
        self.launch, self.stream = driver.cuLaunchKernel, torch._C._cuda_getCurrentRawStream

    def __call__(self, blocks: int, *arguments: int) -> None:
        if torch.cuda.current_device() == self.device:
            self._launched(blocks, arguments)
        else:
            with torch.cuda.device(self.device):
                self._launched(blocks, arguments)

    def _launched(self, blocks: int, arguments: tuple) -> None:
        self.pack(_slots.values, 0, *arguments)
        how = blocks, 1, 1, self.threads, 1, 1, self.shared, self.stream(self.device), _slots.address, 0
        (error,) = self.launch(self.function, *how)
        if error:
            self._again(how, error)

    def _again(self, how: tuple, error: int) -> None:
        if _ensure_context(self.device):
            (error,) = self.launch(self.function, *how)
        _done(error)


def _ensure_context(device: int) -> bool:
    """A thread in which nothing has called CUDA yet has no context: then it gets that of the device."""
    from cuda.bindings import driver

    if int(_done(*driver.cuCtxGetCurrent())):
        return False
    _done(*driver.cuCtxSetCurrent(_done(*driver.cuDevicePrimaryCtxRetain(driver.CUdevice(device)))))
    return True


def _done(error: int, *results: object) -> object:
    if error:
        raise RuntimeError(f"CUDA: {getattr(error, 'name', error)}")
    return results[0] if results else None


# From sweeps on an H200; nothing is tuned at a user's first call. What is too large to stay in the L2 cache leaves it
# first.
def _launch(rows: bool, large: bool) -> dict[str, int]:
    return {"THREADS": 256 if rows else 64, "VECTORS": 2 if rows else 1, "STREAM": 2 if large else 0}


_NAMES = {torch.float32: "float", torch.float16: "fp16", torch.bfloat16: "bf16"}
_MACROS = {"silu": "SILU", "gelu": "GELU", "gelu-tanh": "GELU_TANH"}
_FORMS = {"swiglu_forward": "QQQq", "swiglu_backward": "QQQQQq"}
_FORMS_OF_ROWS = {"swiglu_forward": "QQQqq", "swiglu_backward": "QQQQQqqqq"}  # and N and total: as INDEX


def _macros(activation: str, dtypes: dict[str, torch.dtype], vector: int, long: bool, options: dict) -> tuple[str, ...]:
    constants = {"ACTIVATION": _MACROS[activation], "VECTOR": vector, "INDEX": "long long" if long else "unsigned int"}
    named = {name: _NAMES[dtype] for name, dtype in dtypes.items()}
    return tuple(f"{name}={value}" for name, value in (constants | named | options).items())


@functools.cache
def _kernel(
    name: str, rows: bool, long: bool, large: bool, activation: str, gate: torch.dtype, up: torch.dtype,
    other: torch.dtype, vector: int, device: int,
) -> tuple[_Kernel, int]:  # fmt: skip
    """The kernel, and how many elements a block of it has. `other`: the dtype of y or of dy."""
    options = _launch(rows, large)
    dtypes = {"GATE": gate, "UP": up, "Y" if name == "swiglu_forward" else "DY": other}
    major, minor = torch.cuda.get_device_capability(device)
    cubin = _cubin(f"sm_{major}{minor}", _macros(activation, dtypes, vector, long, options))
    form = _FORMS_OF_ROWS[name] + ("qq" if long else "I4xI4x") if rows else _FORMS[name]
    block = options["THREADS"] * options["VECTORS"] * vector
    return _Kernel(cubin, name + "_rows" * rows, form, options["THREADS"], 0, device), block


# --8<-- [end:launch]


_MOST = 2**30  # rows, and columns, as in swiglu.py
_LARGE = 2**25  # elements, of 2 bytes or 4: more than an L2 cache has


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
    dtype = gate.dtype if gate.dtype == up.dtype else torch.promote_types(gate.dtype, up.dtype)
    return torch.empty_like(gate, dtype=dtype, memory_format=torch.contiguous_format)


def _forward(gate: Tensor, up: Tensor | None, activation: str) -> Tensor:
    """Without up, gate is both: halves of its rows."""
    y = _forward_fake(gate, up, activation)
    total = y.numel()
    if total == 0:
        return y
    dtypes = gate.dtype, gate.dtype if up is None else up.dtype, y.dtype
    most = 8 if torch.float32 not in dtypes else 4  # 16 bytes of the widest dtype
    if up is not None and gate.is_contiguous() and up.is_contiguous():
        pointers = gate.data_ptr(), up.data_ptr(), y.data_ptr()
        vector = 1 if (pointers[0] | pointers[1]) % 16 else most
        kernel, block = _kernel(
            "swiglu_forward", False, False, total >= _LARGE, activation, *dtypes, vector, gate.get_device()
        )
        kernel(-(-total // block), *pointers, total)
        return y
    N = y.shape[-1]
    _checked(N)
    gate, gate_stride = _rows(gate)
    up, up_stride = (None, gate_stride) if up is None else _rows(up)
    first = gate.data_ptr()
    second = first + N * gate.element_size() if up is None else up.data_ptr()
    base = first if up is None else first | second
    vector = 1 if base % 16 or N % most or gate_stride % most or up_stride % most else most
    long = total // vector >= 2**31 - 2**16
    kernel, block = _kernel("swiglu_forward", True, long, False, activation, *dtypes, vector, gate.get_device())
    sizes = gate_stride, up_stride, N // vector, total // vector
    kernel(-(-total // block), first, second, y.data_ptr(), *sizes)
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
    dtypes = gate.dtype, gate.dtype if up is None else up.dtype, dy.dtype
    most = 8 if torch.float32 not in dtypes else 4
    if up is not None and dy.is_contiguous() and gate.is_contiguous() and up.is_contiguous():
        pointers = dy.data_ptr(), gate.data_ptr(), up.data_ptr(), dgate.data_ptr(), dup.data_ptr()
        vector = 1 if (pointers[0] | pointers[1] | pointers[2]) % 16 else most
        kernel, block = _kernel(
            "swiglu_backward", False, False, total >= _LARGE, activation, *dtypes, vector, gate.get_device()
        )
        kernel(-(-total // block), *pointers, total)
        return dgate, dup
    N = dy.shape[-1]
    _checked(N)
    grad_stride = dgate.shape[-1]
    (dy, dy_stride), (gate, gate_stride) = _rows(dy), _rows(gate)
    up, up_stride = (None, gate_stride) if up is None else _rows(up)
    first, second = gate.data_ptr(), dgate.data_ptr()
    inputs = dy.data_ptr(), first, first + N * gate.element_size() if up is None else up.data_ptr()
    outputs = second, second + N * gate.element_size() if up is None else dup.data_ptr()
    strides = dy_stride, gate_stride, up_stride, grad_stride
    base = inputs[0] | first if up is None else inputs[0] | first | inputs[2]
    vector = 1 if base % 16 or N % most or any(stride % most for stride in strides) else most
    long = total // vector >= 2**31 - 2**16
    kernel, block = _kernel("swiglu_backward", True, long, False, activation, *dtypes, vector, gate.get_device())
    kernel(-(-total // block), *inputs, *outputs, *strides, N // vector, total // vector)
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
    _library.impl(_name, _function, "CUDA")
    torch.library.register_fake(f"{_namespace}::{_name}", _meta, lib=_library)
_forward_op = getattr(torch.ops, _namespace).swiglu_forward.default
_eager_forward = getattr(torch.ops, _namespace).swiglu_forward_eager.default._op  # __call__ costs 0.3 us
_backward_op = getattr(torch.ops, _namespace).swiglu_backward.default
_recorded_backward = getattr(torch.ops, _namespace).swiglu_backward_recorded.default


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


_DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # what is most used is found first


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
            apart; or gate is not on an NVIDIA GPU.
        RuntimeError: in a backward with create_graph=True, since there is no double backward; inside torch.func (grad,
            jvp, vmap, ...) and in forward-mode AD, which are not supported either.
        ImportError, FileNotFoundError: there is no compiler for the kernels, or swiglu.cu is not beside this file.

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
    if not gate.is_cuda or torch.version.hip:
        raise ValueError(f"gate: expected a tensor on an NVIDIA GPU, got one on {gate.device}")
    if forward_ad._current_level >= 0 or (_transforms() is not None and isinstance(_transforms(), _Transform)):
        _refuse_transforms(_name(activation), gate, up)
    needed = _grad_enabled() and (gate.requires_grad or (up is not None and up.requires_grad))
    if _compiling() or _modes() or _tracing() or _included(_PRE_DISPATCH):
        return _forward_op(gate, up, activation)
    if needed:
        return _apply(gate, up, activation)
    return _eager_forward(gate, up, activation)
