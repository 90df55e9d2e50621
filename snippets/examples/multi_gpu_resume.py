"""Stop and go on with several ranks: a checkpoint for any number of ranks, and data that continues where it stopped.

`python -m snippets.examples.multi_gpu_resume` starts its ranks itself: with NCCL where each rank has a GPU, else with
gloo on CPUs.
"""

import copy
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler, get_worker_info

from snippets.examples.multi_gpu_failures import Group, outputs, say, shown

BATCH = 8  # samples of a step, over all ranks
SAVED, LAST = 3, 6  # steps


# ---- data ----------------------------------------------------------------------------------------------------------


# --8<-- [start:sampler]
class Batches(Sampler[list[int]]):
    """This rank's part of each global batch of an epoch, from any step on. Pass it as `batch_sampler`.

    Args:
        length: samples in the dataset; an incomplete last batch is left out.
        batch: samples of a step over all ranks, so that another number of ranks sees the same batches.
    """

    def __init__(self, length: int, batch: int, rank: int, ranks: int, seed: int = 0):
        if batch % ranks:
            raise ValueError(f"expected a batch that {ranks} ranks can share, got {batch}")
        self.length, self.batch, self.rank, self.ranks, self.seed = length, batch, rank, ranks, seed
        self.epoch = self.first = 0

    def start_at(self, step: int) -> int:
        """Continue after `step` steps in all; the answer is the epoch."""
        self.epoch, self.first = divmod(step, self.length // self.batch)
        return self.epoch

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.length, generator=torch.Generator().manual_seed(self.seed + self.epoch))
        first, self.first = self.first, 0
        for step in range(first, self.length // self.batch):
            yield order[step * self.batch : (step + 1) * self.batch][self.rank :: self.ranks].tolist()
        self.epoch += 1

    def __len__(self) -> int:
        return self.length // self.batch - self.first


# --8<-- [end:sampler]


# --8<-- [start:stream]
class Shard(IterableDataset):
    """Each sample of a stream once, over all ranks and their DataLoader workers."""

    def __init__(self, stream: Iterable, rank: int, ranks: int):
        self.stream, self.rank, self.ranks = stream, rank, ranks

    def __iter__(self) -> Iterator:
        worker = get_worker_info()
        workers, mine = (worker.num_workers, worker.id) if worker else (1, 0)
        return islice(self.stream, self.rank * workers + mine, None, self.ranks * workers)


# --8<-- [end:stream]


class Noisy(Dataset):
    """A dataset whose workers draw random numbers, as an augmentation does."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return torch.rand(())


def distributed_sampler(length: int = 10, ranks: int = 4) -> None:
    for options in ({}, {"drop_last": True}):
        samplers = [DistributedSampler(range(length), ranks, rank, shuffle=False, **options) for rank in range(ranks)]
        print(f"{options or 'default'}: " + ", ".join(f"rank {rank} {list(one)}" for rank, one in enumerate(samplers)))
    one = DistributedSampler(range(length), 1, 0)
    orders = [list(one), list(one)]
    one.set_epoch(1)
    print(f"order again without set_epoch: {orders[0] == orders[1]}; after set_epoch(1): {orders[0] == list(one)}")


def seeds() -> None:
    for name, each in (("seed", 0), ("seed + rank", 1)):
        drawn, weights, dropped = [], [], []
        for rank in range(2):
            torch.manual_seed(0)
            weights.append(nn.Linear(4, 4).weight)
            torch.manual_seed(0 + each * rank)  # after the weights
            dropped.append(nn.functional.dropout(torch.ones(64)))
            drawn.append([value.item() for value in DataLoader(Noisy(), batch_size=None, num_workers=1)])
        same = [torch.equal(*weights), torch.equal(*dropped), drawn[0] == drawn[1]]
        print(f"{name}: equal on two ranks: weights {same[0]}, dropout {same[1]}, augmentation {same[2]}")


def resumed(length: int = 40, ranks: int = 2, stop: int = 3) -> None:
    def read(sampler: Batches, steps: int) -> list[list[int]]:
        data = DataLoader(range(length), batch_sampler=sampler)
        return [batch.tolist() for batch in islice((batch for _ in range(3) for batch in data), steps)]

    for rank in range(ranks):
        whole = read(Batches(length, BATCH, rank, ranks), 2 * length // BATCH)
        again = Batches(length, BATCH, rank, ranks)
        again.start_at(stop)
        rest = read(again, len(whole) - stop)
        print(
            f"rank {rank}: steps {stop} to {len(whole) - 1} again: equal {rest == whole[stop:]}; step {stop}: {rest[0]}"
        )


# ---- checkpoints ---------------------------------------------------------------------------------------------------


def made(device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8)).to(device)
    if dist.is_initialized():
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for part in (model[0], model[2], model):
            fully_shard(part, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


# --8<-- [start:save]
def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict:
    weights, moments = get_state_dict(model, optimizer)  # names instead of numbers, shards stay shards
    return {"model": weights, "optimizer": moments, "step": torch.tensor(step)}


def load(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> int:
    """Read a checkpoint of any number of ranks into this one's shards; the answer is the step to go on with."""
    state = state_of(model, optimizer, 0)
    dcp.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(state["step"])


# --8<-- [end:save]


# --8<-- [start:plain]
def load_plain(model: nn.Module, path: Path) -> None:
    """Read the weights alone into a model that is not sharded, in one process without a group."""
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=path)
    model.load_state_dict(state["model"])


# --8<-- [end:plain]


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int, device: torch.device) -> list:
    """Losses of steps `first` to `last`, over all ranks."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(1)).to(device)
    batches = Batches(len(x), BATCH, rank, ranks)
    batches.start_at(first)
    losses = []
    for mine in islice(batches, last - first):
        optimizer.zero_grad()
        loss = (model(x[mine]) - x[mine, :8]).square().mean()
        loss.backward()
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        losses.append(whole.item() / ranks)
    return losses


def full(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict, dict]:
    """Whole tensors on rank 0; copies, which further steps leave alone."""
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return copy.deepcopy(get_state_dict(model, optimizer, options=whole))


def save(folder: Path, rank: int, device: torch.device) -> None:
    """Train, save both ways, and go on; what other numbers of ranks must reach is written beside."""
    model, optimizer = made(device)
    trained(model, optimizer, 0, SAVED, device)
    state, start = state_of(model, optimizer, SAVED), time.perf_counter()
    dcp.save(state, checkpoint_id=folder / "saved")
    whole = time.perf_counter() - start
    start = time.perf_counter()
    # A group of its own: its collectives run in a thread, beside those of the next steps.
    future = dcp.async_save(state, checkpoint_id=folder / "async", process_group=dist.new_group(backend="gloo"))
    returned = time.perf_counter() - start
    weights, moments = full(model, optimizer)
    losses = trained(model, optimizer, SAVED, LAST, device)  # while the checkpoint is written
    future.result()
    if rank == 0:
        say(f"save {whole * 1e3:.0f} ms; async_save returns after {returned * 1e3:.0f} ms")
        torch.save({"weights": weights, "moments": moments, "losses": losses}, folder / "expected.pt")


def same(found: Any, expected: Any) -> bool:
    """Equal, bit for bit, in every tensor of nested dictionaries."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[name], each) for name, each in expected.items())
    return torch.equal(found, expected) if isinstance(expected, Tensor) else found == expected


def resume(folder: Path, kind: str, rank: int, device: torch.device) -> None:
    model, optimizer = made(device)
    step = load(model, optimizer, folder / kind)
    weights, moments = full(model, optimizer)
    losses = trained(model, optimizer, step, LAST, device)
    if rank == 0:
        expected = torch.load(folder / "expected.pt")
        apart = max(abs(a / b - 1) for a, b in zip(losses, expected["losses"], strict=True))
        answers = [same(weights, expected["weights"]), same(moments["state"], expected["moments"]["state"])]
        say(f"{kind}, loaded on {dist.get_world_size()}, step {step}: equal weights {answers[0]}, AdamW {answers[1]}")
        say(f"largest relative difference of a later loss {apart:.0e}")


def checkpoints(folder: Path) -> None:
    def group(case: Callable, ranks: int, name: str) -> list[str]:
        print(f"{name} ...", file=sys.stderr, flush=True)
        return outputs([Group(case, folder / name, ranks=ranks, limit=20).begin()])[0]

    print("==== saved")
    shown(group(partial(save, folder), 2, "save"))
    for path in sorted((folder / "saved").iterdir()):
        print(f"{path.name}: {path.stat().st_size / 1e3:.1f} KB")
    print("==== loaded")
    for kind, ranks in (("saved", 1), ("saved", 4), ("async", 4)):
        shown(group(partial(resume, folder, kind), ranks, f"{kind} on {ranks}"))
    model, _ = made(torch.device("cpu"))
    load_plain(model, folder / "saved")
    expected = torch.load(folder / "expected.pt")["weights"]
    print(f"saved, loaded without a group: weights equal {same(dict(model.state_dict()), expected)}")


def main() -> None:
    for case in (distributed_sampler, seeds, resumed):
        print(f"==== {case.__name__.replace('_', ' ')}")
        case()
    with tempfile.TemporaryDirectory() as name:
        checkpoints(Path(name))


if __name__ == "__main__":
    main()
