"""Each failure is seen, by the rank and in the words that the page names, and no process stays behind."""

import multiprocessing
import re
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from snippets.examples import multi_gpu_failures as failures
from snippets.examples.multi_gpu_failures import DETAIL, Group, outputs

LIMIT = 8.0  # seconds: a busy machine has started all groups by then
CPU = {"CUDA_VISIBLE_DEVICES": ""}
CASES = {
    "late": failures.late,
    "uneven DDP": failures.WAITING["uneven DDP"][0],
    "uneven FSDP2": failures.WAITING["uneven FSDP2"][0],
    "evened": failures.evened,
    "skipped": failures.skipped,
    "monitored": failures.monitored,
    "detail": failures.shapes,
    "nan": failures.nan,
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


def test_a_finite_gradient_is_not_found() -> None:
    model = nn.Linear(2, 2)
    found = failures.watch(model)
    model(torch.ones(1, 2)).sum().backward()
    assert not found


def sleeps(rank: int, device: torch.device) -> None:
    time.sleep(failures.FOREVER)


def test_no_process_is_left_behind(tmp_path: Path, ran: dict) -> None:
    hanging = Group(sleeps, tmp_path / "hanging").begin()
    start = time.monotonic()
    outputs([hanging], 1.0)
    assert time.monotonic() - start < 10 and [each.exitcode for each in hanging.processes] == [-9, -9]
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("> begins 12.5\n> RuntimeError: [/a/b.cc:7] Timed out\nmore", ["rank 0: RuntimeError: Timed out"]),
        ("".join(f"Watchdog caught collective operation timeout: W(1) ran for {ms} milliseconds before timing out.\n"
                 for ms in (9, 10)),
         ["rank 0: Watchdog caught collective operation timeout: W(1) ran for 9 milliseconds before timing",
          "    out"]),
        ("noise\n> rank 0: own", ["rank 0: own"]),
    ],
)  # fmt: skip
def test_only_lines_that_matter_are_shown(text: str, expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    failures.shown([text])
    assert capsys.readouterr().out.splitlines() == expected


def test_flight_recorders_last_collectives_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [
        {"profiling_name": "nccl:all_reduce", "input_sizes": [[size]], "state": "completed", "collective_seq_id": size}
        for size in (1, 2, 3)
    ]
    (tmp_path / "flight_1").write_bytes(failures.pickle.dumps({"entries": entries}))
    failures.flight(tmp_path)
    assert capsys.readouterr().out.splitlines() == [
        f"flight recorder, rank 1: collective {size}, nccl:all_reduce [[{size}]] completed" for size in (2, 3)
    ]


def test_ranks_compile_what_their_lengths_need(tmp_path: Path) -> None:
    texts = outputs([Group(failures.compiles, tmp_path / "compiles", CPU, limit=60).begin()])[0]
    assert "rank 0: 1 graph compiled" in texts[0] and "rank 1: 3 graphs compiled" in texts[1]
    waits = [float(wait) for wait in re.findall(r"then waits ([\d.]+) ms", texts[0])]
    assert len(waits) == 5 and min(waits[3:]) > max(waits[1:3])
