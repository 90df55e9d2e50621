"""A checkpoint of two ranks goes on with one and with four; every sample comes once, and the same after a stop."""

from collections.abc import Callable
from functools import partial
from itertools import chain, islice
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from snippets.examples import multi_gpu_resume as resume
from snippets.examples.multi_gpu_failures import Group, outputs

CPU = {"CUDA_VISIBLE_DEVICES": ""}


def test_a_checkpoint_of_two_ranks_goes_on_with_one_and_with_four(tmp_path: Path) -> None:
    def ran(case: Callable, ranks: int, name: str) -> str:
        return outputs([Group(case, tmp_path / name, CPU, ranks=ranks, limit=20).begin()])[0][0]

    assert "async_save returns" in ran(partial(resume.save, tmp_path), 2, "save")
    for kind, ranks in (("saved", 1), ("saved", 4), ("async", 4)):
        said = ran(partial(resume.resume, tmp_path, kind), ranks, f"{kind} on {ranks}")
        assert f"{kind}, loaded on {ranks}, step 3: equal weights True, AdamW True" in said
        assert float(said.split("later loss ")[1]) < 1e-5
    expected = torch.load(tmp_path / "expected.pt")
    assert len(set(expected["losses"])) == resume.LAST - resume.SAVED
    model, _ = resume.made(torch.device("cpu"))
    assert not resume.same(dict(model.state_dict()), expected["weights"])
    resume.load_plain(model, tmp_path / "saved")
    assert resume.same(dict(model.state_dict()), expected["weights"])
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [".metadata", "__0_0.distcp", "__1_0.distcp"]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_sample_comes_once_in_an_epoch(ranks: int) -> None:
    samplers = [resume.Batches(40, 8, rank, ranks) for rank in range(ranks)]
    epochs = [[list(one) for one in samplers] for _ in range(2)]
    for epoch in epochs:
        assert sorted(chain.from_iterable(chain.from_iterable(epoch))) == list(range(40))
    assert epochs[0] != epochs[1], "another order in each epoch"


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("stop", [0, 3, 5, 7])
def test_a_resumed_run_reads_what_an_uninterrupted_one_reads(stop: int, workers: int) -> None:
    def read(sampler: resume.Batches, steps: int) -> list[list[int]]:
        data = DataLoader(range(40), batch_sampler=sampler, num_workers=workers)
        return [batch.tolist() for batch in islice(chain.from_iterable(data for _ in range(3)), steps)]

    whole = read(resume.Batches(40, 8, 1, 2), 12)
    again = resume.Batches(40, 8, 1, 2)
    assert again.start_at(stop) == stop // 5 and len(again) == 5 - stop % 5
    assert read(again, 12 - stop) == whole[stop:]


def test_other_numbers_of_ranks_see_the_same_global_batches() -> None:
    def batches(ranks: int) -> list[set[int]]:
        return [
            set(chain(*parts)) for parts in zip(*(resume.Batches(40, 8, r, ranks) for r in range(ranks)), strict=True)
        ]

    assert batches(1) == batches(2) == batches(4)
    with pytest.raises(ValueError, match="expected a batch that 3 ranks can share, got 8"):
        resume.Batches(40, 8, 0, 3)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_shared_by_ranks_and_workers(workers: int) -> None:
    shards = [DataLoader(resume.Shard(range(21), rank, 2), batch_size=None, num_workers=workers) for rank in range(2)]
    read = [list(shard) for shard in shards]
    assert all(read) and sorted(chain(*read)) == list(range(21))


def test_what_the_page_says_of_samplers_and_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    resume.distributed_sampler()
    resume.seeds()
    assert capsys.readouterr().out.splitlines() == [
        "default: rank 0 [0, 4, 8], rank 1 [1, 5, 9], rank 2 [2, 6, 0], rank 3 [3, 7, 1]",
        "{'drop_last': True}: rank 0 [0, 4], rank 1 [1, 5], rank 2 [2, 6], rank 3 [3, 7]",
        "order again without set_epoch: True; after set_epoch(1): False",
        "seed: equal on two ranks: weights True, dropout True, augmentation True",
        "seed + rank: equal on two ranks: weights True, dropout False, augmentation False",
    ]
