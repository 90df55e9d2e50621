"""The weights of a decoding step by torchao, and their bytes."""

import copy
from collections.abc import Iterator
from dataclasses import fields, replace

from torch import Tensor, nn

from snippets.examples.generation_step import Decoder
from snippets.examples.generation_weights import Layer

KINDS = "int8", "int4", "fp8", "int8 both"


# --8<-- [start:weights]
def config_of(kind: str) -> object:
    """torchao's name for the weights, of one byte or half a byte; "fp8" and "int8 both" quantize inputs, too."""
    from torchao import quantization as ao

    same = {"set_inductor_config": False}  # else quantizing one model changes how all others are compiled
    match kind:
        case "int8":
            return ao.Int8WeightOnlyConfig(version=2, **same)
        case "int4":  # the other packings need mslk; this one is PyTorch's own kernel, for CUDA GPUs from Ampere on
            return ao.Int4WeightOnlyConfig(group_size=128, int4_packing_format="tile_packed_to_4d", **same)
        case "fp8":
            return ao.Float8DynamicActivationFloat8WeightConfig(granularity=ao.PerRow(), **same)
        case "int8 both":
            return ao.Int8DynamicActivationInt8WeightConfig(version=2, **same)
    raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")


def quantized(weight: Tensor, kind: str) -> Tensor:
    """A tensor for F.linear. quantize_ would do the same to every linear layer of a model."""
    from torchao import quantize_

    linear = nn.Linear(*weight.shape[::-1], bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    quantize_(linear, config_of(kind))
    return linear.weight


def with_weights(decoder: Decoder, kind: str) -> Decoder:
    """The same step with other weights; the embedding stays in bf16, since a token reads one row of it."""
    decoder = copy.copy(decoder)
    if kind != "bf16":
        decoder.layers = [of_layer(layer, kind) for layer in decoder.layers]
        decoder.head = quantized(decoder.head[0], kind), None
    return decoder


def of_layer(layer: Layer, kind: str) -> Layer:
    matrices = {field.name: getattr(layer, field.name) for field in fields(layer)}
    return replace(layer, **{n: (quantized(m[0], kind), None) for n, m in matrices.items() if isinstance(m, tuple)})


# --8<-- [end:weights]


def matrices(decoder: Decoder) -> Iterator[Tensor]:
    """All that a step multiplies by."""
    for layer in decoder.layers:
        yield from (value[0] for field in fields(layer) if isinstance(value := getattr(layer, field.name), tuple))
    yield decoder.head[0]


def bytes_of(tensor: Tensor) -> int:
    """Of torchao's tensors the parts: numbers, scales and zero points."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor.nbytes
    return sum(bytes_of(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])
