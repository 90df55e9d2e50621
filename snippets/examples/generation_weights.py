"""The weights of a layer, merged where they multiply the same input, and quantised."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

Matrix = tuple[Tensor, Tensor | None]  # a weight, and the scales of its rows if it is int8, fp8 or int4


@dataclass
class Layer:
    """The weights of a layer, those that multiply the same input as one matrix."""

    before: Tensor  # (width,), the RMSNorm
    qkv: Matrix
    out: Matrix
    between: Tensor
    gate_up: Matrix
    down: Matrix


def layer_of(layer: nn.Module, dtype: torch.dtype | None) -> Layer:
    own, mlp = layer.self_attn, layer.mlp
    return Layer(
        before=layer.input_layernorm.weight.data,
        qkv=quantized(merged(own.q_proj, own.k_proj, own.v_proj), dtype),
        out=quantized(own.o_proj.weight.data, dtype),
        between=layer.post_attention_layernorm.weight.data,
        gate_up=quantized(merged(mlp.gate_proj, mlp.up_proj), dtype),
        down=quantized(mlp.down_proj.weight.data, dtype),
    )


def merged(*linears: nn.Linear) -> Tensor:
    """One matrix for all. The model's own weights become parts of it, so that nothing is in memory twice."""
    weights = [linear.weight.data for linear in linears]
    starts, ends = [w.data_ptr() for w in weights], [w.data_ptr() + w.nbytes for w in weights]
    if starts[1:] == ends[:-1] and len({w.untyped_storage().data_ptr() for w in weights}) == 1:  # merged before
        return weights[0].as_strided((sum(map(len, weights)), weights[0].shape[1]), weights[0].stride())
    whole = torch.cat(weights)
    for linear, part in zip(linears, whole.split([len(weight) for weight in weights]), strict=True):
        linear.weight.data = part
    return whole


# --8<-- [start:quantized]
def quantized(weight: Tensor, dtype: torch.dtype | None) -> Matrix:
    """int8 or fp8 (e4m3) with a scale for each row; torch.uint8 stands for int4, with one for each 128 columns.

    The largest number of a row, or of 128 columns, becomes the largest of the dtype.
    """
    if dtype is None:
        return weight, None
    most = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.uint8: 7.0}[dtype]
    rows = weight.float().unflatten(1, (-1, 128 if dtype == torch.uint8 else weight.shape[1]))
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-12) / most
    rows = (rows / scale).flatten(1)
    if dtype != torch.uint8:
        return (rows.round() if dtype == torch.int8 else rows).to(dtype), scale[:, 0, 0]
    first, second = (rows.round() + 8).to(torch.uint8).unflatten(1, (-1, 2)).unbind(-1)
    return first | second << 4, scale[..., 0].contiguous()  # two neighbours in a byte


def restored(matrix: Matrix, dtype: torch.dtype) -> Tensor:
    """The weight again, as far as its numbers keep it."""
    weight, scale = matrix
    if scale is None:
        return weight.to(dtype)
    if weight.dtype == torch.uint8:
        rows = torch.stack((weight & 15, weight >> 4), -1).flatten(1).float().unflatten(1, (-1, 128)) - 8
        return (rows * scale[..., None]).flatten(1).to(dtype)
    return (weight.float() * scale[:, None]).to(dtype)


# --8<-- [end:quantized]
