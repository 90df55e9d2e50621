"""Two programs in which the GPU waits for data: from a loader, from the host's memory; and each one's mend."""

import itertools

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from snippets.validation.diagnosis_kernels import layers
from snippets.validation.timing import Call


# --8<-- [start:loading]
class Photos(Dataset):
    """Stands for files that have to be decoded: about a millisecond of the processor's time for each."""

    def __len__(self) -> int:
        return 2**20

    def __getitem__(self, index: int) -> Tensor:
        decoded = sum(number * number for number in range(10_000)) % 7
        return torch.full((4096,), float(index % 5 + decoded))


def training(device: torch.device, loader: DataLoader) -> Call:
    """A step that takes the next batch and does some products with it."""
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    weights = [torch.randn(4096, 4096 if device.type == "cuda" else 64, device=device) / 64]
    return lambda: layers(next(batches).to(device), weights)


def loaded_here(device: torch.device) -> Call:
    """The default: the process that launches kernels also decodes."""
    return training(device, DataLoader(Photos(), batch_size=16))


def loaded_ahead(device: torch.device) -> Call:
    """Other processes decode the next batches meanwhile."""
    workers = 8 if device.type == "cuda" else 2
    return training(device, DataLoader(Photos(), batch_size=16, num_workers=workers, persistent_workers=True))


# --8<-- [end:loading]


# --8<-- [start:copying]
def images(pinned: bool) -> Tensor:
    return torch.zeros(64, 3, 512, 512, dtype=torch.float32 if not pinned else torch.uint8, pin_memory=pinned)


def brightness(batch: Tensor) -> Tensor:
    return batch.float().mean(dim=(1, 2, 3))


def from_pageable(device: torch.device) -> Call:
    """Floats from ordinary memory: the driver first copies them to memory that it may send from."""
    batch = images(pinned=False)
    return lambda: brightness(batch.to(device))


def from_pinned(device: torch.device) -> Call:
    """Bytes, as they came from the file, from memory that the GPU reads by itself."""
    batch = images(pinned=True)
    return lambda: brightness(batch.to(device, non_blocking=True))


# --8<-- [end:copying]
