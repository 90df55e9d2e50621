"""Data for several ranks that continues where it stopped."""

from collections.abc import Iterable, Iterator
from itertools import islice

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler, get_worker_info

BATCH = 8  # samples of a step, over all ranks


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
