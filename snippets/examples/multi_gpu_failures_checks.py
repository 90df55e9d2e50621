"""What a training loop can ask: who waits, whether all have a batch, whose gradient is not finite."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn


# --8<-- [start:late]
def waiting(work: Callable[[], object], device: torch.device, steps: int = 10) -> list[list[float]]:
    """Each rank's milliseconds of its own work, and of waiting for the others, per step."""
    spent, flag = torch.zeros(2, dtype=torch.float64), torch.ones(1, device=device)
    for _ in range(steps):
        times = []
        for part in (None, work, partial(dist.all_reduce, flag)):
            if part:
                part()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter())
        spent += torch.tensor([times[1] - times[0], times[2] - times[1]]) * 1e3 / steps
    every: list = [None] * dist.get_world_size()
    dist.all_gather_object(every, spent.tolist())
    return every


# --8<-- [end:late]


# --8<-- [start:together]
def together(batches: Iterable[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Batches while every rank still has one: all ranks then make the same number of steps."""
    for batch in itertools.chain(batches, [None]):
        more = torch.tensor(batch is not None, dtype=torch.int32, device=device)
        dist.all_reduce(more, dist.ReduceOp.MIN)
        if not more:
            return
        yield batch


# --8<-- [end:together]


# --8<-- [start:nan]
def watch(model: nn.Module) -> list[str]:
    """Names of parameters whose own gradient on this rank, before any all-reduce, is not finite."""
    found: list[str] = []
    for name, parameter in model.named_parameters():

        def check(gradient: Tensor, name: str = name) -> None:
            if not gradient.isfinite().all():
                found.append(name)

        parameter.register_hook(check)
    return found


# --8<-- [end:nan]
