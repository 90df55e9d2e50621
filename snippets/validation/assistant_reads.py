"""A training step whose trace the assistant reads. Run `python -m snippets.validation.assistant_reads`."""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule

from snippets.validation.assistant.reads import read_all


# --8<-- [start:step]
def batch_of(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows).mul_(1.01)  # reads 262,144 Python numbers


def step(model: nn.Module, rows: list[list[float]]) -> None:
    model(batch_of(rows)).square().mean().backward()


def traced(path: Path) -> None:
    model, rows = nn.Linear(512, 16), [[float(row)] * 512 for row in range(512)]
    plan = schedule(wait=0, warmup=1, active=2, repeat=1)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with profile(activities=activities, schedule=plan, with_stack=True, acc_events=True) as profiler:
        for _ in range(3):
            step(model, rows)
            profiler.step()
    profiler.export_chrome_trace(str(path))


# --8<-- [end:step]


def main() -> None:
    """Print what the assistant reads from the trace."""
    with tempfile.TemporaryDirectory() as folder:
        traced(path := Path(folder) / "trace.json")
        print(read_all([path]))


if __name__ == "__main__":
    main()
