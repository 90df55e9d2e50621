"""One call over a batch instead of many calls: guidance, nodes of a graph, environments."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


# --8<-- [start:diffusion]
def denoise(x: Tensor, text: Tensor, conv: Tensor) -> Tensor:
    for _ in range(4):
        x = x + F.conv2d(F.silu(x + text[:, :, None, None]), conv, padding=1)
    return x


def guided_by_two_calls(x: Tensor, text: Tensor, conv: Tensor) -> Tensor:
    without, with_text = (denoise(x, each, conv) for each in text.split(1))
    return without + 5 * (with_text - without)


def guided_by_one_batch(x: Tensor, text: Tensor, conv: Tensor) -> Tensor:
    without, with_text = denoise(x.expand(2, -1, -1, -1), text, conv).split(1)
    return without + 5 * (with_text - without)


# --8<-- [end:diffusion]


# --8<-- [start:graph]
@cache
def edges(nodes: int, degree: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where each edge begins and ends; made once, as a graph is."""
    ends = torch.arange(nodes, device=device).repeat_interleave(degree)
    return (ends * 7 + torch.arange(len(ends), device=device)) % nodes, ends


def messages_from_edges(x: Tensor, weight: Tensor, degree: int = 16) -> Tensor:
    begins, ends = edges(len(x), degree, x.device)
    return torch.zeros_like(x).index_add(0, ends, F.linear(x[begins], weight))  # one row per edge


def messages_from_nodes(x: Tensor, weight: Tensor, degree: int = 16) -> Tensor:
    begins, ends = edges(len(x), degree, x.device)
    return torch.zeros_like(x).index_add(0, ends, F.linear(x, weight)[begins])  # one row per node


# --8<-- [end:graph]


# --8<-- [start:reinforcement]
def value_of(observation: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return F.linear(F.linear(observation, first).tanh(), second).amax(-1)


def one_environment_at_a_time(observations: Tensor, first: Tensor, second: Tensor) -> Tensor:
    best = [value_of(each, first, second).item() for each in observations]  # each item() waits for the GPU
    return torch.tensor(best, device=first.device, dtype=first.dtype)


all_environments_at_once = value_of
# --8<-- [end:reinforcement]
