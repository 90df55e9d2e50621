"""A training loop, with its step as a function, so that the diagnosis can be asked about it.

Run `python -m snippets.validation.diagnosis_loop`.
"""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from snippets.validation.diagnosis import diagnose, read, record


def small() -> tuple[nn.Module, DataLoader]:
    """A model and data that stand for yours."""
    on_gpu = torch.cuda.is_available()
    rows, width = (8192, 2048) if on_gpu else (512, 64)
    data = TensorDataset(torch.randn(rows, width), torch.randint(10, (rows,)))
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 10))
    return model, DataLoader(data, batch_size=64, shuffle=True, pin_memory=on_gpu)


# --8<-- [start:loop]
def forever(loader: DataLoader) -> Iterator[list[Tensor]]:
    """Batch after batch: a profile may need more than the loader has."""
    return itertools.chain.from_iterable(itertools.repeat(loader))


def look(model: nn.Module, loader: DataLoader, device: torch.device, trace: Path) -> str:
    """Train for a few steps and say where the time of one went."""
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batches = forever(loader)

    def step() -> None:
        x, targets = (tensor.to(device, non_blocking=True) for tensor in next(batches))
        nn.functional.cross_entropy(model(x), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(10 + loader.num_workers * (loader.prefetch_factor or 0)):
        step()  # compiles, allocates, uses up what the workers had ready
    return str(diagnose(read(record(step, trace))))


# --8<-- [end:loop]


def main() -> None:
    """Print the diagnosis of a small training step."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        print(look(*small(), device, Path(folder) / "trace.json"))


if __name__ == "__main__":
    main()
