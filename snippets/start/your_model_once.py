"""What a fix computes once instead of in every call: a merged adapter, keys and values, a spectrum."""

import torch
import torch.nn.functional as F
from torch import Tensor

Inputs = tuple[Tensor, ...]


# --8<-- [start:lora]
def adapter_apart(x: Tensor, weight: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(x, weight) + 0.5 * F.linear(F.linear(x, down), up)


def merged_once(x: Tensor, weight: Tensor, up: Tensor, down: Tensor) -> Inputs:
    return x, weight + 0.5 * up @ down


adapter_merged = F.linear
# --8<-- [end:lora]


# --8<-- [start:encoder-decoder]
def projected_each_step(x: Tensor, encoded: Tensor, key: Tensor, value: Tensor) -> Tensor:
    keys, values = F.linear(encoded, key), F.linear(encoded, value)  # of tokens that never change
    return F.scaled_dot_product_attention(x, keys, values)


def projected_once(x: Tensor, encoded: Tensor, key: Tensor, value: Tensor) -> Inputs:
    return x, F.linear(encoded, key), F.linear(encoded, value)


kept = F.scaled_dot_product_attention
# --8<-- [end:encoder-decoder]


# --8<-- [start:fft]
def filtered_as_complex(signal: Tensor, filters: Tensor) -> Tensor:
    return torch.fft.ifft(torch.fft.fft(signal) * torch.fft.fft(filters)).real


def spectrum_once(signal: Tensor, filters: Tensor) -> Inputs:
    return signal, torch.fft.rfft(filters)


def filtered_as_real(signal: Tensor, spectrum: Tensor) -> Tensor:
    return torch.fft.irfft(torch.fft.rfft(signal) * spectrum, n=signal.shape[-1])


# --8<-- [end:fft]
