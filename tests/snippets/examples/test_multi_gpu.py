"""What each strategy sends is what is predicted, to the byte, on two and four processes; exposed time by hand."""

import functools
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import multi_gpu
from tests.snippets.reference.ranks import on_ranks

LINK = {operation: {1: 1.0, 10**9: 1.0} for operation in ("all-reduce", "all-gather")}  # a second for any message


Found = Callable[[int], dict]


def eager() -> dict:
    torch.set_num_threads(1)
    return multi_gpu.measured(list(multi_gpu.EAGER), dist.get_rank(), torch.device("cpu"))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What the first of so many ranks has found."""
    return functools.cache(lambda ranks: on_ranks(eager, ranks, tmp_path_factory.mktemp("ranks"))[0])


PREDICTED = [name for name, strategy in multi_gpu.EAGER.items() if strategy.base]


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("name", PREDICTED)
def test_bytes_and_memory_are_as_predicted(name: str, processes: int, found: Found) -> None:
    seen = found(processes)
    assert not seen["failed"]
    run, guess = seen["runs"][name], multi_gpu.predict(name, seen["runs"], multi_gpu.by_size(seen["rates"]), processes)
    assert sorted((op, int(size)) for op, size in guess["messages"]) == sorted(map(tuple, run["messages"]))
    for part in ("parameters", "gradients", "state"):
        assert guess[part] == run[part], part


def test_one_gpu_sends_nothing(found: Found) -> None:
    assert found(2)["runs"]["one GPU"]["messages"] == []


def test_exposed_time_is_what_no_other_kernel_covers() -> None:
    kernels = [("nccl a", 0, 10), ("gemm", 4, 2), ("nccl b", 8, 6), ("copy", 12, 5), ("gemm", 13, 1), ("nccl", 20, 1)]
    events = [{"cat": "kernel", "name": name, "ts": ts, "dur": dur} for name, ts, dur in kernels]
    events.append({"cat": "cpu_op", "name": "nccl", "ts": 0, "dur": 1000})
    # NCCL from 0 to 14 and from 20 to 21; other kernels from 4 to 6 and 12 to 17; microseconds
    found = multi_gpu.parts(events)
    assert found == pytest.approx({"matmuls": 0.003, "other": 0.004, "exposed": 0.011, "idle": 0.003})


def test_a_reduction_hides_behind_later_work_only() -> None:
    work, send = multi_gpu.Work, [("all-reduce", 1000)]
    assert multi_gpu.timeline([work(5, reduce=send), work(5)], LINK) == 0
    assert multi_gpu.timeline([work(5), work(5, reduce=send)], LINK) == 1
    assert multi_gpu.timeline([work(5, reduce=send * 7), work(5, reduce=send)], LINK) == 3
    assert multi_gpu.timeline([work(5, reduce=send), work(5)], LINK, overlap=False) == 1


def test_a_gather_runs_one_unit_ahead() -> None:
    work, get = multi_gpu.Work, [("all-gather", 1000)]
    assert multi_gpu.timeline([work(5, gather=get), work(5, gather=get)], LINK) == 1
    assert multi_gpu.timeline([work(2, gather=get), work(5, gather=get * 4)], LINK) == 1 + 2


def test_a_bucket_closes_when_it_is_full() -> None:
    assert multi_gpu.buckets([[3, 3], [3, 1]], cap=5) == [[("all-reduce", 6)], [("all-reduce", 4)]]
    assert multi_gpu.buckets([[3], [9], [1]], cap=5) == [[], [("all-reduce", 12)], [("all-reduce", 1)]]


def test_scaled_links_are_slower_only_between_nodes(found: Found) -> None:
    seen = found(2)
    size = {n: multi_gpu.scaled("DDP", seen["runs"], multi_gpu.by_size(seen["rates"]), n, 2)[0] for n in (2, 8, 64)}
    whole = 2 * seen["runs"]["DDP"]["gradients"]
    assert size == pytest.approx({2: whole / 2, 8: whole * 7 / 8, 64: whole * 63 / 64})
    assert multi_gpu.NETWORK < multi_gpu.NVLINK
