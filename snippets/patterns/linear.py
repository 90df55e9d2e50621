"""Linear layers at several levels: products merged, an activation behind one, batches of products, and experts.

Run `python -m snippets.patterns.compare_levels qkv` to check and time the levels of one.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from snippets.patterns.levels import Component, Shape, compiled, scripted


# --8<-- [start:qkv]
def qkv_written(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of x (tokens, width); keys and values are a quarter as wide."""
    width = x.shape[-1]
    q, k, v = weight.split([width, width // 4, width // 4])
    return F.linear(x, q), F.linear(x, k), F.linear(x, v)


def qkv_native(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    width = x.shape[-1]
    q, k, v = F.linear(x, weight).split([width, width // 4, width // 4], -1)
    return q, k, v


# --8<-- [end:qkv]


# --8<-- [start:gate-up]
def gate_up_written(x: Tensor, weight: Tensor) -> Tensor:
    gate, up = weight.chunk(2)
    gate = x @ gate.t()
    return gate * torch.sigmoid(gate) * (x @ up.t())


def gate_up_native(x: Tensor, weight: Tensor) -> Tensor:
    gate, up = F.linear(x, weight).chunk(2, -1)
    return F.silu(gate) * up


# --8<-- [end:gate-up]


# --8<-- [start:linear-gelu]
def linear_gelu_written(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    z = x @ weight.t() + bias
    return 0.5 * z * (1 + torch.tanh(0.7978845608028654 * (z + 0.044715 * z * z * z)))


def linear_gelu_native(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


# --8<-- [end:linear-gelu]


# --8<-- [start:epilogue]
def linear_gelu_epilogue(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """cuBLAS does all of it in one kernel. Private, without a backward; on a CPU it is the other GELU, with erf."""
    return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)


# --8<-- [end:epilogue]


# --8<-- [start:batched]
def batched_written(x: Tensor, weight: Tensor) -> Tensor:
    """x (batch, rows, width), and a weight (width, width) for each of the batch."""
    return torch.stack([x[i] @ weight[i].t() for i in range(x.shape[0])])


def batched_native(x: Tensor, weight: Tensor) -> Tensor:
    return torch.bmm(x, weight.transpose(1, 2))


# --8<-- [end:batched]


# --8<-- [start:unbound]
def batched_unbound(x: Tensor, weight: Tensor) -> Tensor:
    """The loop again. The backward of unbind joins the gradients once; that of an index fills a tensor each time."""
    return torch.stack([each @ own.t() for each, own in zip(x.unbind(), weight.unbind(), strict=True)])


# --8<-- [end:unbound]


# --8<-- [start:experts]
def experts_written(x: Tensor, weight: Tensor, ends: Tensor, sizes: list[int]) -> Tensor:
    """Rows of x (tokens, width), sorted by expert, each times its expert's weight of (experts, hidden, width)."""
    results = []
    for part, each in zip(x.split(sizes), weight.unbind()):  # noqa: B905  TorchScript knows no strict
        results.append(part @ each.t())
    return torch.cat(results)


def experts_native(x: Tensor, weight: Tensor, ends: Tensor, sizes: list[int]) -> Tensor:
    """`ends` says on the GPU where each expert's rows end: int32 (experts,). The host need not know."""
    return F.grouped_mm(x, weight.transpose(1, 2), offs=ends)


# --8<-- [end:experts]


# --8<-- [start:padded]
def experts_padded(x: Tensor, weight: Tensor, ends: Tensor, sizes: list[int]) -> Tensor:
    """A batch of products, for which each expert gets as many rows as the busiest one has."""
    padded = torch.bmm(pad_sequence(x.split(sizes), batch_first=True), weight.transpose(1, 2))
    return torch.cat([rows[:size] for rows, size in zip(padded, sizes, strict=True)])


# --8<-- [end:padded]


# --8<-- [start:layouts]
def layouts(x: Tensor, weight: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """The same x (rows, inner) and weight (columns, inner), stored in other ways, to be multiplied by F.linear."""
    x_columns, weight_columns = x.t().contiguous().t(), weight.t().contiguous().t()
    wide = x.new_zeros(x.shape[0], 2 * x.shape[1])
    left, every_other = wide.clone(), wide
    left[:, : x.shape[1]], every_other[:, ::2] = x, x
    return {
        "rows-rows": (x, weight),  # as nn.Linear stores its weight
        "rows-columns": (x, weight_columns),
        "columns-rows": (x_columns, weight),
        "columns-columns": (x_columns, weight_columns),
        "left-half": (left[:, : x.shape[1]], weight),
        "every-other": (every_other[:, ::2], weight),
    }


# --8<-- [end:layouts]


# --8<-- [start:larger]
def larger(weight: Tensor, multiple: int = 64) -> Tensor:
    """The weight (columns, inner) with zeros at its end, so that both sizes are multiples."""
    columns, inner = weight.shape
    return F.pad(weight, (0, -inner % multiple, 0, -columns % multiple))


# --8<-- [end:larger]


# ---- inputs: results are about one in size --------------------------------------------------------------------------


def qkv_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    tokens, width = shape
    return made(dtype, device, x=(tokens, width), weight=(width + 2 * (width // 4), width))


def gate_up_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    tokens, width, hidden = shape
    return made(dtype, device, x=(tokens, width), weight=(2 * hidden, width))


def linear_gelu_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    tokens, width = shape
    return made(dtype, device, x=(tokens, width), weight=(4 * width, width)) | {
        "bias": torch.randn(4 * width, device=device).to(dtype)
    }


def batched_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    batch, rows, width = shape
    return made(dtype, device, x=(batch, rows, width), weight=(batch, width, width))


def experts_inputs(shape: Shape, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor | list[int]]:
    """Experts with unequal numbers of rows, each a multiple of 16: a group has to begin where 16 bytes do."""
    experts, tokens, width, hidden = shape
    sizes = uneven(experts, tokens)
    ends = torch.tensor(sizes, device=device).cumsum(0).to(torch.int32)
    return made(dtype, device, x=(tokens, width), weight=(experts, hidden, width)) | {"ends": ends, "sizes": sizes}


def uneven(experts: int, tokens: int, multiple: int = 16) -> list[int]:
    """From half of the average to one and a half times as many; the last expert gets what is left over."""
    shares = [0.5 + expert / max(experts - 1, 1) for expert in range(experts)]
    sizes = [math.floor(share * tokens / sum(shares) / multiple) * multiple for share in shares]
    sizes[-1] += tokens - sum(sizes)
    return sizes


def made(dtype: torch.dtype, device: torch.device, **sizes: Shape) -> dict[str, Tensor]:
    """Random tensors; a weight is divided by the root of how many products each sum has."""
    drawn = {name: torch.randn(size, device=device) for name, size in sizes.items()}
    drawn["weight"] /= math.sqrt(drawn["weight"].shape[-1])
    return {name: t.to(dtype) for name, t in drawn.items()}


QKV = Component(
    name="qkv",
    levels={
        0: lambda: qkv_written,
        1: lambda: qkv_native,
        2: lambda: scripted(qkv_written),
        3: lambda: compiled(qkv_native),
    },
    reference=qkv_native,
    inputs=qkv_inputs,
    gradients=("x", "weight"),
    sizes=("tokens", "width"),
    shapes={"tiny": (16, 256), "small": (256, 1024), "typical": (8192, 4096), "large": (16384, 8192)},
)
GATE_UP = Component(
    name="gate_up",
    levels={
        0: lambda: gate_up_written,
        1: lambda: gate_up_native,
        2: lambda: scripted(gate_up_written),
        3: lambda: compiled(gate_up_native),
    },
    reference=gate_up_native,
    inputs=gate_up_inputs,
    gradients=("x", "weight"),
    sizes=("tokens", "width", "hidden"),
    shapes={
        "tiny": (16, 128, 256),
        "small": (256, 1024, 3584),
        "typical": (8192, 4096, 14336),
        "large": (16384, 8192, 28672),
    },
)
LINEAR_GELU = Component(
    name="linear_gelu",
    levels={
        0: lambda: linear_gelu_written,
        1: lambda: linear_gelu_native,
        2: lambda: scripted(linear_gelu_written),
        3: lambda: compiled(linear_gelu_native),
    },
    reference=linear_gelu_native,
    inputs=linear_gelu_inputs,
    gradients=("x", "weight", "bias"),
    sizes=("tokens", "width"),
    shapes={"tiny": (16, 128), "small": (256, 1024), "typical": (8192, 4096), "large": (16384, 8192)},
)
BATCHED = Component(
    name="batched",
    levels={
        0: lambda: batched_written,
        1: lambda: batched_native,
        2: lambda: scripted(batched_written),
        3: lambda: compiled(batched_native),
    },
    reference=batched_native,
    inputs=batched_inputs,
    gradients=("x", "weight"),
    sizes=("batch", "rows", "width"),
    shapes={"tiny": (4, 16, 64), "small": (16, 64, 256), "typical": (64, 512, 1024), "large": (64, 2048, 2048)},
)
EXPERTS = Component(
    name="experts",
    levels={
        0: lambda: experts_written,
        1: lambda: experts_native,
        2: lambda: scripted(experts_written),
        3: lambda: compiled(experts_native),
    },
    reference=experts_written,  # the grouped product knows no float64
    yardstick=0,
    inputs=experts_inputs,
    gradients=("x", "weight"),
    sizes=("experts", "tokens", "width", "hidden"),
    shapes={
        "tiny": (4, 128, 64, 96),
        "small": (8, 512, 256, 512),
        "typical": (64, 32768, 2048, 1536),
        "large": (8, 65536, 4096, 14336),
    },
)
COMPONENTS = (QKV, GATE_UP, LINEAR_GELU, BATCHED, EXPERTS)
