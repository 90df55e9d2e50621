"""A matmul with and without its epilogue: this kernel beside cuBLAS at the shapes that models have.

The case times linear layers: x of (rows, inner) times the transpose of a weight of (columns, inner), as models keep it.
Layers of Llama 3, GPT-2 and ViT, in training and for few tokens, are `MODELS`. "gelu" has an epilogue, and "fp32" none.
"""

import math
from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import matmul as kernel
from tests.benchmarks import sides, wrong
from tests.benchmarks.bounds import bound, gain
from tests.benchmarks.case import Case, Point, Workload

# columns and inner of the layers of a model, and its tokens in training
LAYERS = {
    "1B": ({"qkv": (3072, 2048), "out": (2048, 2048), "up": (16384, 2048), "down": (2048, 8192)}, 8192),
    "8B": ({"qkv": (6144, 4096), "out": (4096, 4096), "up": (28672, 4096), "down": (4096, 14336)}, 8192),
    "70B": ({"qkv": (10240, 8192), "out": (8192, 8192), "up": (57344, 8192), "down": (8192, 28672)}, 4096),
}
FEW = (1, 16, 64)  # tokens, as in decoding
OTHERS = {  # rows, columns, inner
    "square 4096": (4096, 4096, 4096), "square 8192": (8192, 8192, 8192), "8B half up": (8192, 14336, 4096),
    "8B up 512": (512, 28672, 4096), "8B down 512": (512, 4096, 14336), "8B head 1": (1, 128256, 4096),
    "gpt2 qkv": (8192, 2304, 768), "gpt2 fc": (8192, 3072, 768), "gpt2 down": (8192, 768, 3072),
    "gpt2 head": (8192, 50257, 768), "vit up": (12608, 3072, 768), "vit down": (12608, 768, 3072),
}  # fmt: skip
MODELS = {
    f"{model} {layer}" + (f" {rows}" if rows in FEW else ""): (rows, columns, inner)
    for model, (layers, tokens) in LAYERS.items()
    for layer, (columns, inner) in layers.items()
    for rows in (tokens, *FEW)
} | OTHERS
LOADED = "square 4096", "square 8192", "8B half up"  # timed under sustained load, too
SHORT = 0.13e12  # FLOP below which the host takes as long as the GPU: these are timed in a CUDA graph
ACTIVATED = {"gelu": "gelu", "gelu_tanh": "gelu-tanh", "silu": "silu"}
HALF_UP = ("rows", "columns", "inner"), (8192, 14336, 4096)


def points(device: torch.device) -> Iterator[Point]:
    if device.type == "cpu":
        yield Point(
            {"rows": 256, "columns": 512, "inner": 256}, "float32", modes=("calls",), variants=("eager", "compile")
        )
        return
    for name, (rows, columns, inner) in MODELS.items():
        shape = {"rows": rows, "columns": columns, "inner": inner}
        modes: tuple[str, ...] = ("graph",) if 2 * rows * columns * inner < SHORT else ("burst",)
        if name in LOADED:
            modes += ("sustained",)
        if name == "8B half up":
            modes += ("device",)
        yield Point(shape, "bfloat16", "forward", modes, ("eager", "ours"), name=name)
    half_up = dict(zip(*HALF_UP, strict=True))
    for part in ACTIVATED:
        yield Point(
            half_up, "bfloat16", "forward", ("burst",), ("eager", "compile", "cublaslt", "quack", "ours"), part, part
        )
    for part in ("", "gelu"):
        modes = ("burst", "sustained")
        yield Point(half_up, "bfloat16", "both", modes, ("eager", "compile", "ours"), part, f"{part} step".strip())
    yield Point(
        half_up, "bfloat16", "forward", ("burst",), ("eager", "ours", "quack", "compile-max"), "searched", "searched"
    )
    square = {"rows": 4096, "columns": 4096, "inner": 4096}
    yield Point(square, "float16", "forward", ("burst",), ("eager", "ours"), name="fp16")
    yield Point(square, "float32", "forward", ("burst",), ("eager", "ours"), name="fp32")
    yield Point(
        {"rows": 4096, "columns": 4097, "inner": 4097}, "bfloat16", "forward", ("burst",), ("eager", "ours"), name="odd"
    )
    few = {"rows": 16, "columns": 4096, "inner": 4096}
    yield Point(few, "bfloat16", "forward", ("calls",), ("eager", "ours"), "called", "called")


def prepare(point: Point, device: torch.device) -> Workload:
    rows, columns, inner = point.shape.values()
    dtype = getattr(torch, point.dtype)
    x = torch.randn(rows, inner, device=device).to(dtype)
    weight = (torch.randn(columns, inner, device=device) / inner**0.5).to(dtype)
    inputs = {"x": x, "weight": weight}
    activation = ACTIVATED.get(point.part)
    if activation:
        inputs["bias"] = torch.randn(columns, device=device).to(dtype)
    functions: dict[str, sides.Find | sides.Side] = {
        "eager": lambda: eager(activation),
        "ours": lambda: ours(activation),
        "quack": lambda: quack(activation),
        "cublaslt": lambda: cublaslt(activation),
    }
    passes = {"forward": 1, "backward": 2, "both": 3}[point.direction]  # each of as many products
    read = (x.nbytes + weight.nbytes) * passes
    written = {"forward": rows * columns * dtype.itemsize, "both": read // 3 + rows * columns * dtype.itemsize}
    return sides.workload(
        point,
        kernel,
        inputs,
        functions,
        bytes_read=read,
        bytes_written=written.get(point.direction, read // 2),
        flops=2 * rows * columns * inner * passes,
        mix="read" if rows <= 64 else "copy",
        wrong=wrong_functions(activation),
    )


def eager(activation: str | None) -> sides.Function:
    """As a Linear layer: cuBLAS, which chooses by its heuristic."""
    functions = {
        "gelu": F.gelu,
        "gelu-tanh": lambda z: F.gelu(z, approximate="tanh"),
        "silu": F.silu,
    }
    if activation is None:
        return F.linear
    return lambda x, weight, bias: functions[activation](F.linear(x, weight, bias))


def ours(activation: str | None) -> sides.Function:
    return lambda x, weight, bias=None: kernel.matmul(x, weight.t(), bias, activation=activation)


def cublaslt(activation: str | None) -> sides.Function:
    """PyTorch's way to the epilogue of cuBLASLt, which has the tanh approximation alone."""
    if activation != "gelu-tanh":
        raise NotImplementedError("cuBLASLt has the tanh approximation only")
    return lambda x, weight, bias: torch._addmm_activation(bias, x, weight.t(), use_gelu=True)


def quack(activation: str | None) -> sides.Function:
    from quack.gemm_interface import gemm, gemm_act

    if activation is None:
        return lambda x, weight: gemm(x, weight.t())
    if activation != "gelu-tanh":
        raise NotImplementedError("quack has the tanh approximation only")
    return lambda x, weight, bias: gemm_act(
        x, weight.t(), bias=bias, activation="gelu_tanh_approx", store_preact=False
    )[1]


def wrong_functions(activation: str | None) -> Mapping[str, sides.Function]:
    right = eager(activation)

    def short(x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
        kept = x.shape[1] - max(1, x.shape[1] // 32)
        return right(x[:, :kept], weight[:, :kept], *bias)

    return wrong.usual(right) | {"the last of K is not added": short}


GAINS = {f"g{index}": gain("ours", over="eager", at=name) for index, name in enumerate(MODELS)}
ROWS = dict(zip(GAINS, (rows for rows, _, _ in MODELS.values()), strict=True))
LARGE = [name for name, (_, *weight) in zip(GAINS, MODELS.values(), strict=True) if 2 * math.prod(weight) > 50 * 2**20]
# The smallest of all speedups over cuBLAS.
worst_gain = bound("", f"min({', '.join(GAINS)})", GAINS)
# The middle one of 1 and 16 tokens.
few_gain = bound("", f"median({', '.join(name for name, rows in ROWS.items() if rows in FEW[:2])})", GAINS)
# The same where the weight is larger than the L2.
large_gain = bound("", f"median({', '.join(name for name in LARGE if ROWS[name] in FEW[:2])})", GAINS)
# The middle one of 64 tokens.
tie_gain = bound("", f"median({', '.join(name for name, rows in ROWS.items() if rows == FEW[2])})", GAINS)
# The middle one of more rows.
many_gain = bound("", f"median({', '.join(name for name, rows in ROWS.items() if rows not in FEW)})", GAINS)

LABELS = {"cublaslt": {"label": "cuBLASLt", "role": "peer-1"}}
CASE = Case(
    question="Is a Triton matmul good enough against cuBLAS: at the shapes of models, with and without an epilogue?",
    check_at={
        "forward both": [
            {"part": part, "rows": 64, "columns": 512, "inner": 256} for part in ("", *ACTIVATED, "searched", "called")
        ],
    },
)
