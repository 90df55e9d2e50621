"""Every sample comes once, and the same after a stop."""

from itertools import chain, islice

import pytest
from torch.utils.data import DataLoader

from snippets.examples import multi_gpu_resume_data


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_sample_comes_once_in_an_epoch(ranks: int) -> None:
    samplers = [multi_gpu_resume_data.Batches(40, 8, rank, ranks) for rank in range(ranks)]
    epochs = [[list(one) for one in samplers] for _ in range(2)]
    for epoch in epochs:
        assert sorted(chain.from_iterable(chain.from_iterable(epoch))) == list(range(40))
    assert epochs[0] != epochs[1], "another order in each epoch"


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("stop", [0, 3, 5, 7])
def test_a_resumed_run_reads_what_an_uninterrupted_one_reads(stop: int, workers: int) -> None:
    def read(sampler: multi_gpu_resume_data.Batches, steps: int) -> list[list[int]]:
        data = DataLoader(range(40), batch_sampler=sampler, num_workers=workers)
        return [batch.tolist() for batch in islice(chain.from_iterable(data for _ in range(3)), steps)]

    whole = read(multi_gpu_resume_data.Batches(40, 8, 1, 2), 12)
    again = multi_gpu_resume_data.Batches(40, 8, 1, 2)
    assert again.start_at(stop) == stop // 5 and len(again) == 5 - stop % 5
    assert read(again, 12 - stop) == whole[stop:]


def test_other_numbers_of_ranks_see_the_same_global_batches() -> None:
    def batches(ranks: int) -> list[set[int]]:
        return [
            set(chain(*parts))
            for parts in zip(*(multi_gpu_resume_data.Batches(40, 8, r, ranks) for r in range(ranks)), strict=True)
        ]

    assert batches(1) == batches(2) == batches(4)
    with pytest.raises(ValueError, match="expected a batch that 3 ranks can share, got 8"):
        multi_gpu_resume_data.Batches(40, 8, 0, 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_shared_by_ranks_and_workers(workers: int) -> None:
    shards = [
        DataLoader(multi_gpu_resume_data.Shard(range(21), rank, 2), batch_size=None, num_workers=workers)
        for rank in range(2)
    ]
    read = [list(shard) for shard in shards]
    assert all(read) and sorted(chain(*read)) == list(range(21))


def test_what_the_page_says_of_samplers_and_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    multi_gpu_resume_data.distributed_sampler()
    multi_gpu_resume_data.seeds()
    assert capsys.readouterr().out.splitlines() == [
        "default: rank 0 [0, 4, 8], rank 1 [1, 5, 9], rank 2 [2, 6, 0], rank 3 [3, 7, 1]",
        "{'drop_last': True}: rank 0 [0, 4], rank 1 [1, 5], rank 2 [2, 6], rank 3 [3, 7]",
        "order again without set_epoch: True; after set_epoch(1): False",
        "seed: equal on two ranks: weights True, dropout True, augmentation True",
        "seed + rank: equal on two ranks: weights True, dropout False, augmentation False",
    ]
