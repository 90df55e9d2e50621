# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The Ridgepoint authors
"""LayerNorm and GELU as one kernel in CUDA C++, forward and backward: this file and layer_norm_gelu.cu to copy. They
need torch 2.11 or newer for CUDA, which brings cuda-bindings and NVIDIA's run-time compiler, and a GPU of compute
capability 8.0 or higher.

    z = (x - mean) * rstd * weight + bias    with rstd = 1 / sqrt(variance + eps), over the last dimension
    y = z * Phi(z)                           Phi is the normal distribution's, or approximated with tanh

Sources: Ba, Kiros & Hinton, "Layer Normalization", 2016 (https://arxiv.org/abs/1607.06450);
Hendrycks & Gimpel, "Gaussian Error Linear Units (GELUs)", 2016 (https://arxiv.org/abs/1606.08415).

Names: M rows (all leading dimensions together) of N columns. A row that is more than a block of threads has is cut into
slices.
"""

import ctypes
import functools
import numbers
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

_SOURCE = Path(__file__).with_name("layer_norm_gelu.cu")


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


class _Slots(threading.local):
    """Where a thread puts a launch's arguments, each in 8 bytes, and the pointers to them that the driver wants."""

    def __init__(self):
        self.values = ctypes.create_string_buffer(8 * 16)
        self.pointers = (ctypes.c_void_p * 16)(*(ctypes.addressof(self.values) + 8 * i for i in range(16)))
        self.address = ctypes.addressof(self.pointers)


_slots = _Slots()
_FORMS = {  # of arguments, each in 8 bytes
    "layer_norm_gelu_forward": "QQQQQQqqi4xi4xdi4x",
    "layer_norm_gelu_backward": "QQQQQQQQqqqi4xi4x",
    "layer_norm_gelu_sum": "QQQi4xi4x",
}


class _Kernel:
    """One function of a cubin, for one device. A call costs the host a fraction of one through Triton's launcher: what
    does not change between calls is made here, once.

    Attributes:
        resident: blocks that run at once, or are to be launched at most.
    """

    def __init__(self, cubin: bytes, name: str, form: str, threads: int, shared: int, device: int):
        from cuda.bindings import driver

        self.pack = struct.Struct(form).pack_into
        self.threads, self.shared, self.device = threads, shared, device
        self.library = _done(*driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0))
        kernel = _done(*driver.cuLibraryGetKernel(self.library, name.encode()))
        self.function = driver.CUfunction(int(kernel))
        self.launch, self.stream = driver.cuLaunchKernel, torch._C._cuda_getCurrentRawStream
        more = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        with torch.cuda.device(device):
            _ensure_context(device)
            _done(*driver.cuKernelSetAttribute(more, shared, kernel, driver.CUdevice(device)))
            at_once = _done(*driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function, threads, shared))
        self.resident = at_once * torch.cuda.get_device_properties(device).multi_processor_count

    def __call__(self, blocks: int, *arguments: float) -> None:
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


# Chosen by row length from sweeps on an H200, in bf16; nothing is tuned at a user's first call. COLUMNS: of a row, that
# a thread has. AT_ONCE: threads that a multiprocessor has room for, with their registers. SLICE: columns of a row that
# a block has at most; a longer row is cut. EVERY: blocks for all rows, so that none takes a second turn. The others are
# macros.
@functools.cache
def _forward_launch(N: int, bits: int, device: object) -> dict[str, int]:
    if N <= 1024:
        return {"COLUMNS": 32, "ROWS": 2, "STAGES": 1, "AT_ONCE": 640, "SLICE": 16384}
    if N <= 8192:
        chosen = {"COLUMNS": 32, "ROWS": 2, "STAGES": 0, "AT_ONCE": 640, "SLICE": 16384}
        return chosen | {"KEPT": 0, "STREAM": 1, "EVERY": 1}
    if N <= 12288:
        return {"COLUMNS": 32, "ROWS": 1, "STAGES": 0, "AT_ONCE": 1152, "SLICE": 16384, "KEPT": 0, "EVERY": 1}
    if N <= 16384:
        return {"COLUMNS": 32, "ROWS": 2, "STAGES": 2, "AT_ONCE": 512, "SLICE": 16384}
    if N <= 65536:
        return {"COLUMNS": 32, "ROWS": 1, "STAGES": 3, "AT_ONCE": 768, "SLICE": 4096, "LAG": 1, "STREAM": 1}
    chosen = {"COLUMNS": 32, "ROWS": 1, "STAGES": 2, "AT_ONCE": 1536, "SLICE": 8192}
    return chosen | {"LAG": 1, "KEPT": 0, "STREAM": 1}


@functools.cache
def _backward_launch(N: int, bits: int, device: object) -> dict[str, int]:
    if N <= 8192:
        stages = 3 if N <= 1024 else 2
        return {"COLUMNS": 16, "ROWS": 1, "STAGES": stages, "AT_ONCE": 512, "SLICE": 16384, "HELD": 1}
    if N <= 9216:
        return {"COLUMNS": 24, "ROWS": 1, "STAGES": 3, "AT_ONCE": 384, "SLICE": 16384, "HELD": 1}
    if N <= 16384:
        return {"COLUMNS": 32, "ROWS": 1, "STAGES": 2, "AT_ONCE": 512, "SLICE": 16384, "STREAM": 1}
    if N <= 65536:
        return {"COLUMNS": 16, "ROWS": 1, "STAGES": 3, "AT_ONCE": 512, "SLICE": 2048, "LAG": 1, "STREAM": 1}
    if N <= 131072:
        return {"COLUMNS": 24, "ROWS": 1, "STAGES": 3, "AT_ONCE": 384, "SLICE": 4096, "LAG": 1}
    return {"COLUMNS": 16, "ROWS": 1, "STAGES": 4, "AT_ONCE": 512, "SLICE": 8192, "LAG": 1}


@functools.cache
def _shared_memory(device: int) -> int:
    """Of a multiprocessor, in bytes; an H200's where there is no such GPU."""
    if not 0 <= device < torch.cuda.device_count():
        return 228 * 1024
    return torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor


def _plan(N: int, vector: int, streamed: int, beside: int, options: dict[str, int], device: int) -> dict[str, object]:
    """The macros, the width of a slice, and the bytes of shared memory.

    Args:
        streamed: bytes of a column in all that is fetched ahead.
        beside: bytes of a column that wait in shared memory where they are not held in registers.
    """
    swept = vector == 8
    if not swept:  # few threads, that get the registers which they want
        chosen = {"COLUMNS": 16, "SLICE": 4096} if N <= 2**17 else {"COLUMNS": 32, "SLICE": 8192}
        options = options | chosen | {"SLICE": min(chosen["SLICE"], options["SLICE"])}
    slices = -(-N // options["SLICE"])
    width = -(-N // (slices * vector)) * vector
    columns = max(options["COLUMNS"], vector)
    if width < 32 * columns:  # a warp at least, and no more of a row than there is
        columns = max(vector, -(-width // (32 * vector)) * vector)
    threads = -(-width // (32 * columns)) * 32
    blocks = max(1, options["AT_ONCE"] // threads) if swept else 1
    sliced, rows = slices > 1, options["ROWS"] if swept else 1
    lag = max(1, options.get("LAG", 0)) if sliced else 0
    stages = max(options["STAGES"], lag + 1 if sliced else 0) if vector > 1 else 0
    held = 0 if sliced else 1 if stages == 0 and beside == 0 else options.get("HELD", 0) if swept else 0
    waiting = 0 if held else (lag + 1) * beside
    room, shared = _shared_memory(device), lambda stages: rows * columns * threads * (stages * streamed + waiting)
    while stages > lag + 1 and shared(stages) > room // blocks - 4096:
        stages -= 1
    if shared(stages) > room - 4096 and slices < 32:  # on a GPU with less of it, smaller slices
        smaller = options | {"SLICE": -(-N // (2 * slices)), "LAG": 1}
        return _plan(N, vector, streamed, beside, smaller, device)
    macros = {"VECTOR": vector, "VECTORS": columns // vector, "THREADS": threads, "ROWS": rows, "STAGES": stages,
              "HELD": held, "KEPT": options.get("KEPT", 1), "BLOCKS": blocks, "SLICED": int(sliced), "LAG": lag,
              "STREAM": options.get("STREAM", 0), "FULL": int(slices * threads * columns == N)}  # fmt: skip
    return {"width": width, "shared": shared(stages), "every": options.get("EVERY", 0)} | macros


_NAMES = {torch.float32: "float", torch.float16: "fp16", torch.bfloat16: "bf16", None: "none"}


def _forward_plan(
    N: int, vector: int, x: torch.dtype, weight: torch.dtype | None, bias: torch.dtype | None, y: torch.dtype,
    tanh: bool, device: int,
) -> dict[str, object]:  # fmt: skip
    plan = _plan(N, vector, x.itemsize, 0, _forward_launch(N, 8 * x.itemsize, device), device)
    return plan | {"X": _NAMES[x], "WEIGHT": _NAMES[weight], "BIAS": _NAMES[bias], "Y": _NAMES[y], "TANH": int(tanh),
                   "FINE": int(y == torch.float32)}  # fmt: skip


def _backward_plan(
    N: int, vector: int, x: torch.dtype, weight: torch.dtype | None, bias: torch.dtype | None, dy: torch.dtype,
    tanh: bool, parameters: bool, device: int,
) -> dict[str, object]:  # fmt: skip
    plan = _plan(N, vector, x.itemsize + dy.itemsize, 4, _backward_launch(N, 8 * x.itemsize, device), device)
    return plan | {"X": _NAMES[x], "WEIGHT": _NAMES[weight], "BIAS": _NAMES[bias], "Y": _NAMES[dy], "TANH": int(tanh),
                   "FINE": int(torch.float32 in (dy, weight, bias)), "PARAMETERS": int(parameters)}  # fmt: skip


def _macros(plan: dict[str, object]) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in plan.items() if name.isupper())


def _made(name: str, plan: dict[str, object], device: int) -> tuple[_Kernel, int, int]:
    """The kernel, how many rows a block of it has at once, and of how many columns a slice is."""
    major, minor = torch.cuda.get_device_capability(device)
    cubin = _cubin(f"sm_{major}{minor}", _macros(plan))
    kernel = _Kernel(cubin, name, _FORMS[name], plan["THREADS"], plan["shared"], device)
    if plan.get("every"):
        kernel.resident = _MOST_ROWS
    return kernel, plan["ROWS"], plan["width"]


@functools.cache
def _forward_kernel(*of: object) -> tuple[_Kernel, int, int]:
    return _made("layer_norm_gelu_forward", _forward_plan(*of), of[-1])


@functools.cache
def _backward_kernel(*of: object) -> tuple[_Kernel, int, int]:
    return _made("layer_norm_gelu_backward", _backward_plan(*of), of[-1])


@functools.cache
def _sum_kernel(weight: torch.dtype | None, bias: torch.dtype | None, device: int) -> _Kernel:
    plan = {"WEIGHT": _NAMES[weight], "BIAS": _NAMES[bias], "THREADS": 512, "ROWS": 1, "shared": 0, "width": 0}
    return _made("layer_norm_gelu_sum", plan, device)[0]


_MOST_ROWS, _MOST_COLUMNS = 2**30, 2**18  # 32 slices, one for each thread of a warp that looks at them


def _checked(M: int, N: int) -> None:
    if M > _MOST_ROWS or N > _MOST_COLUMNS:
        raise ValueError(f"x: expected at most {_MOST_ROWS} rows and {_MOST_COLUMNS} columns, got {M} x {N}")


def _rows(t: Tensor) -> tuple[Tensor, int]:
    """Rows of neighbouring columns, and how far apart they are: no copy where the strides allow that."""
    if t.is_contiguous():
        return t, t.shape[-1]
    rows = t.reshape(-1, t.shape[-1])
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    return rows, rows.stride(0)


def _contiguous(parameter: Tensor | None) -> tuple[Tensor | None, torch.dtype | None]:
    """And its dtype."""
    return (None, None) if parameter is None else (parameter.contiguous(), parameter.dtype)


def _words(M: int, N: int, width: int, x: Tensor) -> Tensor | None:
    """Where blocks leave what they know of their slices: none yet."""
    return None if width >= N else torch.zeros(M * -(-N // width), dtype=torch.int64, device=x.device)


def _at(t: Tensor | None) -> int:
    return 0 if t is None else t.data_ptr()


def _forward_fake(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, tanh: bool, dtype: torch.dtype, save: bool
) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
    return y, x.new_empty((2, *x.shape[:-1]) if save else 0, dtype=torch.float32)


def _forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, tanh: bool, dtype: torch.dtype, save: bool
) -> tuple[Tensor, Tensor]:
    """y, and where a backward is to come the rows' mean and rstd."""
    y, stats = _forward_fake(x, weight, bias, eps, tanh, dtype, save)
    if x.numel() == 0:
        return y, stats
    N = x.shape[-1]
    M = x.numel() // N
    _checked(M, N)
    x, x_stride = _rows(x)
    (weight, of_weight), (bias, of_bias) = _contiguous(weight), _contiguous(bias)
    x_at, weight_at, bias_at = x.data_ptr(), _at(weight), _at(bias)
    most = 4 if x.dtype == torch.float32 or dtype == torch.float32 else 8  # 16 bytes of the widest
    vector = 1 if (x_at | weight_at | bias_at) % 16 or N % most or x_stride % most else most
    kernel, rows, width = _forward_kernel(N, vector, x.dtype, of_weight, of_bias, dtype, tanh, x.get_device())
    words = _words(M, N, width, x)
    slices = -(-N // width)
    blocks = slices * min(max(1, kernel.resident // slices), -(-M // rows))
    given = x_at, weight_at, bias_at, y.data_ptr(), stats.data_ptr(), _at(words)
    kernel(blocks, *given, x_stride, M, N, width, eps, save)
    return y, stats


def _gradient(parameter: Tensor | None, x: Tensor, asked: bool) -> Tensor:
    if parameter is None or not asked:
        return x.new_empty(0)
    return torch.empty_like(parameter, memory_format=torch.contiguous_format)


def _backward_fake(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, stats: Tensor, tanh: bool, parameters: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    return dx, _gradient(weight, x, parameters), _gradient(bias, x, parameters)


def _backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, stats: Tensor, tanh: bool, parameters: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """dx; dweight and dbias, empty where there is no such parameter, or none that asks for a gradient."""
    dx, dweight, dbias = _backward_fake(dy, x, weight, bias, stats, tanh, parameters)
    if x.numel() == 0:
        return dx, dweight.zero_(), dbias.zero_()
    N = x.shape[-1]
    M = x.numel() // N
    (dy, dy_stride), (x, x_stride) = _rows(dy), _rows(x)
    (weight, of_weight), (bias, of_bias) = _contiguous(weight), _contiguous(bias)
    dy_at, x_at, weight_at, bias_at = dy.data_ptr(), x.data_ptr(), _at(weight), _at(bias)
    most = 4 if torch.float32 in (x.dtype, dy.dtype) else 8
    vector = 1 if (dy_at | x_at | weight_at | bias_at) % 16 or N % most or dy_stride % most or x_stride % most else most
    dtypes = x.dtype, of_weight, of_bias, dy.dtype
    kernel, rows, width = _backward_kernel(N, vector, *dtypes, tanh, parameters, x.get_device())
    words = _words(M, N, width, x)
    slices = -(-N // width)
    groups = min(max(1, kernel.resident // slices), -(-M // rows))
    shares = x.new_empty((groups, 2, N), dtype=torch.float32) if parameters else None
    given = dy_at, x_at, weight_at, bias_at, stats.data_ptr(), _at(words), dx.data_ptr(), _at(shares)
    kernel(groups * slices, *given, dy_stride, x_stride, M, N, width)
    if shares is not None:
        grads = dweight.data_ptr(), dbias.data_ptr()
        _sum_kernel(of_weight, of_bias, x.get_device())(2 * -(-N // 32), shares.data_ptr(), *grads, groups, N)
    return dx, dweight, dbias


# define and impl cost the host less per call than custom_op; fake tensors, torch.compile and opcheck work as well
_namespace = __name__.replace(".", "_")  # another copy of this file, in another package, has another
_library = torch.library.Library(_namespace, "FRAGMENT")
_FORWARD = (
    "(Tensor x, Tensor? weight, Tensor? bias, float eps, bool tanh, ScalarType dtype, bool save) -> (Tensor, Tensor)"
)
_BACKWARD = (
    "(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor stats, bool tanh, bool parameters)"
    " -> (Tensor, Tensor, Tensor)"
)
for _name, _schema, _function, _meta in (
    ("layer_norm_gelu_forward", _FORWARD, _forward, _forward_fake),
    ("layer_norm_gelu_forward_eager", _FORWARD, _forward, _forward_fake),  # without a derivative: a Function has it
    ("layer_norm_gelu_backward", _BACKWARD, _backward, _backward_fake),
    ("layer_norm_gelu_backward_recorded", _BACKWARD, _backward, _backward_fake),  # refuses to be differentiated
):
    _library.define(_name + _schema)
    _library.impl(_name, _function, "CUDA")
    torch.library.register_fake(f"{_namespace}::{_name}", _meta, lib=_library)
_forward_op = getattr(torch.ops, _namespace).layer_norm_gelu_forward.default
_eager_forward = getattr(torch.ops, _namespace).layer_norm_gelu_forward_eager.default._op  # __call__ costs 0.3 us
_backward_op = getattr(torch.ops, _namespace).layer_norm_gelu_backward.default
_recorded_backward = getattr(torch.ops, _namespace).layer_norm_gelu_backward_recorded.default


# of the innermost call of torch.func, None outside; compiled code is guarded by it
_transforms, _Transform = torch._C._functorch.peek_interpreter_stack, torch._C._functorch.CInterpreter
# Who may be recording: Dynamo, jit.trace, modes of __torch_dispatch__ (make_fx, export), make_fx before autograd.
# They get the operator, derivative and all; eager code takes the shorter way, through the Function alone.
_compiling, _tracing = torch.compiler.is_dynamo_compiling, torch._C._is_tracing
_modes, _included = torch._C._len_torch_dispatch_stack, torch._C._dispatch_tls_is_dispatch_key_included
_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch
_grad_enabled = torch.is_grad_enabled  # found sooner than in torch
_autocast = torch.is_autocast_enabled


def _refuse_transforms(*tensors: Tensor | None) -> None:
    """Inside torch.func, and for a tensor with a tangent, the operator would return a result without derivatives."""
    unseen = isinstance(_transforms(), _Transform) or torch.compiler.is_compiling()  # there tangents do not show
    if unseen or any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise RuntimeError("layer_norm_gelu: expected a call outside torch.func (grad, jvp, vmap, ...) and "
                           "forward-mode AD, got one inside: this kernel has a plain backward only")  # fmt: skip


_ONCE = (
    "layer_norm_gelu: expected a backward without create_graph=True, got one with: it would lose the second "
    "derivative, which this kernel does not have"
)


class _LayerNormGELU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, tanh: bool, dtype: torch.dtype,
        computed: tuple[Tensor, ...] = (),
    ) -> Tensor:  # fmt: skip
        y, stats = computed or _eager_forward(x, weight, bias, eps, tanh, dtype, True)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, bias, stats)
        ctx.tanh = tanh
        return y

    @staticmethod
    def backward(ctx, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:
            return None, None, None, None, None, None, None
        if forward_ad._current_level >= 0:
            _refuse_transforms(dy)
        if torch.is_grad_enabled():  # not once_differentiable, which lets a dy that needs no gradient pass
            raise RuntimeError(_ONCE)
        _, weight, bias, *_ = ctx.needs_input_grad
        backward = _recorded_backward if _compiling() or _modes() else _backward_op
        dx, dweight, dbias = backward(dy, *ctx.saved_tensors, ctx.tanh, weight or bias)
        return dx, dweight if weight else None, dbias if bias else None, None, None, None, None


# Function.apply, but for what that does for torch.func, which is refused: 1.5 us
_apply = super(torch.autograd.Function, _LayerNormGELU).apply


def _differentiable(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, tanh: bool, dtype: torch.dtype, save: bool
) -> tuple[Tensor, Tensor]:
    """The operator for autograd: its gradient is in every graph that holds it, whoever recorded that."""
    if forward_ad._current_level >= 0 or isinstance(_transforms(), _Transform):
        _refuse_transforms(x, weight, bias)
    needed = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias))
    with torch._C._AutoDispatchBelowAutograd():
        y, stats = _forward_op(x, weight, bias, eps, tanh, dtype, save or needed)
    return _apply(x, weight, bias, eps, tanh, dtype, (y, stats)) if needed else y, stats


class _Once(torch.autograd.Function):
    """The backward's operator for autograd: in a graph, it has a derivative no more than in eager code."""

    @staticmethod
    def forward(ctx, *arguments: object) -> tuple[Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            return _recorded_backward(*arguments)

    @staticmethod
    def backward(ctx, *_: Tensor) -> None:
        raise RuntimeError(_ONCE)


_library.impl("layer_norm_gelu_forward", _differentiable, "Autograd")
_library.impl("layer_norm_gelu_backward_recorded", _Once.apply, "Autograd")
# torch's default, for an operator that has no derivative, costs the host 0.3 us
_library.impl("layer_norm_gelu_forward_eager", torch.library.fallthrough_kernel, "Autograd")


_DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # what is most used is found first
_NUMBER = (float, numbers.Real)  # NumPy's, too; the first is found sooner
# torch autocasts layer_norm to fp32 on a GPU, and gelu takes what it gets; we do as the installed torch does
_AUTOCAST = torch._C._dispatch_has_kernel_for_dispatch_key("aten::layer_norm", "AutocastCUDA")


def _nested(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Of a jagged tensor, the function of its values; of a strided one, of its tensors one by one."""
    if x.layout != torch.jagged:
        return torch.nested.as_nested_tensor([function(t) for t in x.unbind()])
    if x._ragged_idx == x.dim() - 1:
        raise ValueError("x: expected rows of one length, got a jagged tensor whose last dimension is ragged")
    y = function(x.values())
    return torch.nested.nested_tensor_from_jagged(y, x.offsets(), x.lengths(), x._ragged_idx)


def _wrong_type(name: str, t: object) -> TypeError:
    got = t.dtype if isinstance(t, Tensor) else type(t)
    return TypeError(f"{name}: expected an fp32, fp16 or bf16 tensor, got {got}")


def _refuse_parameter(name: str, t: Tensor, x: Tensor) -> None:
    """For the one reason or the other."""
    if t.is_nested:
        raise TypeError(f"{name}: expected a plain tensor, got a nested one")
    if t.shape != (x.shape[-1],):
        raise ValueError(f"{name}: expected shape {list(x.shape[-1:])}, got {list(t.shape)}")
    raise ValueError(f"{name}: expected on {x.device}, where x is, got {t.device}")


def layer_norm_gelu(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, approximate: str = "none"
) -> Tensor:
    """GELU of a LayerNorm over the last dimension: gelu((x - mean) / sqrt(variance + eps) * weight + bias).

    The function, and the dtype of the result, of `F.gelu(F.layer_norm(x, (N,), weight, bias, eps), approximate=...)`:
    computed in fp32 and rounded once, to the dtype of x (under CUDA autocast to fp32). Where that is fp16 or bf16, the
    normal distribution of the exact GELU is good to 1/30000 of itself, in fp32 to fp32's last bits. What the two have
    and this has not: several normalized dimensions, fp64, double backward, torch.func and forward-mode AD.

    Args:
        x: [..., N], fp32, fp16 or bf16, with any strides; nested, too. Rows without unit stride are copied first.
        weight: [N], fp32, fp16 or bf16; its dtype may differ from that of x. None: as if of ones.
        bias: [N], likewise. None: as if of zeros.
        eps: added to the variance.
        approximate: "none" for the normal distribution, "tanh" for its approximation with tanh.

    Returns:
        A new contiguous tensor of the shape of x. Gradients flow to x, to weight and to bias, each in its own dtype;
        those of weight and bias are bitwise the same in every run, and cost nothing where neither is asked for. For
        gradients x is kept, and two numbers a row.

    Raises:
        TypeError: x, weight or bias is not a tensor of one of these dtypes; weight or bias is nested; eps is no number.
        ValueError: x has no dimension, a last one that is jagged, or more than 2^30 rows or 2^18 columns; weight or
            bias is not [N], or on another device than x; approximate is neither "none" nor "tanh"; or x is not on an
            NVIDIA GPU.
        RuntimeError: in a backward with create_graph=True, since there is no double backward; inside torch.func (grad,
            jvp, vmap, ...) and in forward-mode AD, which are not supported either.
        ImportError, FileNotFoundError: there is no compiler, or layer_norm_gelu.cu is not beside this file.

    Sources: Ba, Kiros & Hinton, "Layer Normalization", 2016 (https://arxiv.org/abs/1607.06450);
    Hendrycks & Gimpel, "Gaussian Error Linear Units (GELUs)", 2016 (https://arxiv.org/abs/1606.08415).
    """
    if not isinstance(x, Tensor) or (dtype := x.dtype) not in _DTYPES:
        raise _wrong_type("x", x)
    if weight is not None and (not isinstance(weight, Tensor) or weight.dtype not in _DTYPES):
        raise _wrong_type("weight", weight)
    if bias is not None and (not isinstance(bias, Tensor) or bias.dtype not in _DTYPES):
        raise _wrong_type("bias", bias)
    if not isinstance(eps, _NUMBER):
        raise TypeError(f"eps: expected a number, got {type(eps)}")
    if x.is_nested:
        return _nested(lambda t: layer_norm_gelu(t, weight, bias, eps, approximate), x)
    shape = x.shape
    if not shape:
        raise ValueError("x: expected at least one dimension, got none")
    if weight is not None and (weight.is_nested or weight.shape != (shape[-1],) or weight.device != x.device):
        _refuse_parameter("weight", weight, x)
    if bias is not None and (bias.is_nested or bias.shape != (shape[-1],) or bias.device != x.device):
        _refuse_parameter("bias", bias, x)
    if not isinstance(approximate, str) or approximate not in ("none", "tanh"):
        raise ValueError(f'approximate: expected "none" or "tanh", got {approximate!r}')
    if not x.is_cuda or torch.version.hip:
        raise ValueError(f"x: expected a tensor on an NVIDIA GPU, got one on {x.device}")
    if forward_ad._current_level >= 0 or (_transforms() is not None and isinstance(_transforms(), _Transform)):
        _refuse_transforms(x, weight, bias)
    tanh = approximate == "tanh"
    if _AUTOCAST and _autocast("cuda"):
        dtype = torch.float32
    needed = _grad_enabled() and (
        x.requires_grad or (weight is not None and weight.requires_grad) or (bias is not None and bias.requires_grad)
    )
    if _compiling() or _modes() or _tracing() or _included(_PRE_DISPATCH):
        return _forward_op(x, weight, bias, eps, tanh, dtype, False)[0]
    if needed:
        return _apply(x, weight, bias, eps, tanh, dtype)
    return _eager_forward(x, weight, bias, eps, tanh, dtype, False)[0]
