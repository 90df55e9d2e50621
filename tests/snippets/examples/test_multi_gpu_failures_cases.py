"""Each failure is seen, by the rank and in the words that the page names."""

import multiprocessing
import re
from pathlib import Path

import pytest

from snippets.examples import multi_gpu_failures, multi_gpu_failures_cases
from snippets.examples.multi_gpu_failures import DETAIL
from snippets.examples.multi_gpu_failures_group import Group, outputs

LIMIT = 8.0  # seconds: a busy machine has started all groups by then
CPU = {"CUDA_VISIBLE_DEVICES": ""}
CASES = {
    "late": multi_gpu_failures_cases.late,
    "uneven DDP": multi_gpu_failures.WAITING["uneven DDP"][0],
    "uneven FSDP2": multi_gpu_failures.WAITING["uneven FSDP2"][0],
    "evened": multi_gpu_failures_cases.evened,
    "skipped": multi_gpu_failures_cases.skipped,
    "monitored": multi_gpu_failures_cases.monitored,
    "detail": multi_gpu_failures_cases.shapes,
    "nan": multi_gpu_failures_cases.nan,
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Group, list[str]]]:
    """All cases at once, on four ranks of a CPU: most of them wait for a time-out."""
    folder = tmp_path_factory.mktemp("groups")
    groups = {}
    for name, case in CASES.items():
        limit = LIMIT if name in ("uneven DDP", "uneven FSDP2", "skipped") else 40.0
        environment = CPU | (DETAIL if name == "detail" else {})
        groups[name] = Group(case, folder / name, environment, ranks=4, limit=limit, grace=1.0).begin()
    texts = outputs(groups.values(), 80)
    return {name: (group, text) for (name, group), text in zip(groups.items(), texts, strict=True)}


def failed(group: Group) -> list[int]:
    return [rank for rank, each in enumerate(group.processes) if each.exitcode not in (0, -9)]


def test_the_late_rank_is_the_one_that_does_not_wait(ran: dict) -> None:
    group, texts = ran["late"]
    found = re.findall(r"rank (\d): own work ([\d.]+) ms, waiting for others ([\d.]+) ms", texts[0])
    assert [int(rank) for rank, _, _ in found] == [0, 1, 2, 3] and not failed(group)
    assert max(found, key=lambda each: float(each[1]))[0] == min(found, key=lambda each: float(each[2]))[0] == "1"


@pytest.mark.parametrize("name", ["uneven DDP", "uneven FSDP2", "skipped"])
def test_a_rank_without_the_others_times_out(ran: dict, name: str) -> None:
    group, texts = ran[name]
    assert failed(group) == [0] and re.search(f"Timed out waiting {LIMIT * 1e3:.0f}ms", texts[0])
    (began,) = re.findall(r"begins ([\d.]+)", texts[0])
    assert group.ended[0] - float(began) > LIMIT - 0.1


def test_uneven_data_trains_with_join_and_stops_together_without(ran: dict) -> None:
    group, texts = ran["evened"]
    assert not failed(group)
    for rank, text in enumerate(texts):
        assert f"rank {rank}: DDP, join: {3 if rank else 5} steps" in text
        assert f"rank {rank}: FSDP2, together: 3 steps" in text


def test_a_monitored_barrier_names_the_missing_rank(ran: dict) -> None:
    group, texts = ran["monitored"]
    assert failed(group) == [0] and "Rank 1 failed to pass monitoredBarrier in 1000 ms" in texts[0]


def test_detail_names_both_shapes(ran: dict) -> None:
    _, texts = ran["detail"]
    said = [text for text in texts if "Detected mismatch between collectives" in text]
    assert said and all("TensorShape=[4]" in text and re.search(r"TensorShape=\[[567]\]", text) for text in said)


def test_only_the_rank_with_the_nan_finds_it_before_the_all_reduce(ran: dict) -> None:
    _, texts = ran["nan"]
    for rank, text in enumerate(texts):
        found = "0.bias, 0.weight, 2.bias, 2.weight" if rank == 1 else "nothing"
        assert f"rank {rank}: the hook found {found}; after the all-reduce, NaN in 4 of 4" in text


def test_ranks_compile_what_their_lengths_need(tmp_path: Path) -> None:
    texts = outputs([Group(multi_gpu_failures_cases.compiles, tmp_path / "compiles", CPU, limit=60).begin()])[0]
    assert "rank 0: 1 graph compiled" in texts[0] and "rank 1: 3 graphs compiled" in texts[1]
    waits = [float(wait) for wait in re.findall(r"then waits ([\d.]+) ms", texts[0])]
    assert len(waits) == 5 and min(waits[3:]) > max(waits[1:3])


def test_no_rank_runs_on(ran: dict) -> None:
    assert ran and not multiprocessing.active_children()
