"""Failures of several ranks, each as a function that every rank runs."""

import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from snippets.examples.multi_gpu_failures_checks import together, waiting, watch
from snippets.examples.multi_gpu_failures_group import say

FOREVER = 600.0  # seconds that a rank sleeps which does something else; the launcher ends it


def model_on(device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)


def steps_of(model: nn.Module, batches: Iterable[Tensor]) -> int:
    done = 0
    for batch in batches:
        model(batch).square().mean().backward()
        done += 1
    return done


def one_step(model: Callable, x: Tensor) -> None:
    model(x).sum().backward()


def sharded(model: nn.Module) -> nn.Module:
    """FSDP2. The mesh says the device: without it, a machine with a GPU takes the GPU."""
    device = next(model.parameters()).device.type
    return fully_shard(model, mesh=init_device_mesh(device, (dist.get_world_size(),)))


def batches_of(rank: int, device: torch.device) -> list[Tensor]:
    """Uneven: five on rank 0, three on every other."""
    return [torch.randn(4, 16, device=device) for _ in range(3 if rank else 5)]


def begins() -> None:
    say("begins", time.time())


def late(rank: int, device: torch.device) -> None:
    dist.all_reduce(torch.ones(1, device=device))  # the first makes the communicator
    every = waiting(lambda: time.sleep(0.05 if rank == 1 else 0.01), device)
    if rank == 0:
        for each, (own, wait) in enumerate(every):
            say(f"rank {each}: own work {own:.1f} ms, waiting for others {wait:.1f} ms")


def uneven(wrap: Callable[[nn.Module], nn.Module], rank: int, device: torch.device) -> None:
    model = wrap(model_on(device))
    steps_of(model, batches_of(1, device))
    begins()
    if rank == 0:  # it has one batch more
        steps_of(model, batches_of(1, device)[:1])
        wait_for(device)
    time.sleep(FOREVER)  # such as: rank 1 evaluates


def evened(rank: int, device: torch.device) -> None:
    model = DistributedDataParallel(model_on(device))
    with model.join():
        done = steps_of(model, batches_of(rank, device))
    say(f"rank {rank}: DDP, join: {done} steps")
    done = steps_of(sharded(model_on(device)), together(batches_of(rank, device), device))
    say(f"rank {rank}: FSDP2, together: {done} steps")


def compiles(rank: int, device: torch.device) -> None:
    """Rank 1 meets a new length in step 3, rank 0 does not."""
    model, graphs = model_on(device), []

    def counting(graph: torch.fx.GraphModule, inputs: list) -> Callable:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("inductor" if device.type == "cuda" else "aot_eager")(graph, inputs)

    fast = torch.compile(model, backend=counting, dynamic=False)
    for step in range(5):
        x = torch.randn(8 if step < 3 or rank == 0 else 8 + step, 16, device=device)
        (own, wait) = waiting(partial(one_step, fast, x), device, steps=1)[0]
        if rank == 0:
            say(f"step {step}: rank 0 works {own:.1f} ms, then waits {wait:.1f} ms")
    say(f"rank {rank}: {len(graphs)} graph{'s' * (len(graphs) > 1)} compiled")


# --8<-- [start:skipped]
def skipped(rank: int, device: torch.device) -> None:
    dist.all_reduce(torch.ones(4, device=device))
    begins()
    if rank == 0:  # the mistake
        dist.all_reduce(torch.ones(8, device=device))
        wait_for(device)
    time.sleep(FOREVER)


def monitored(rank: int, device: torch.device) -> None:
    checks = dist.new_group(backend="gloo")
    begins()
    if rank == 0:
        dist.monitored_barrier(checks, timeout=timedelta(seconds=1))
    time.sleep(FOREVER)


# --8<-- [end:skipped]


def shapes(rank: int, device: torch.device) -> None:
    dist.all_reduce(torch.ones(4, device=device))
    begins()
    x = torch.full((4 + rank,), rank + 1.0, device=device)
    dist.all_reduce(x)
    wait_for(device)
    say(f"rank {rank}: no error, result {[round(value, 1) for value in x.tolist()]}")


def nan(rank: int, device: torch.device) -> None:
    model = DistributedDataParallel(model_on(device))
    found = watch(model.module)
    x = torch.randn(4, 16, device=device)
    if rank == 1:
        x[2, 3] = torch.nan
    model(x).square().mean().backward()
    bad = sum(not parameter.grad.isfinite().all() for parameter in model.parameters())
    say(f"rank {rank}: the hook found {', '.join(sorted(found)) or 'nothing'}; after the all-reduce, NaN in {bad} of 4")


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
