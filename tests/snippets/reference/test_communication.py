"""Bytes are those of a ring, times are on the line between measured sizes, and a record holds any number of ranks."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from snippets.reference import communication
from snippets.reference.communication import OPERATIONS, KiB, MiB, rates_of, report, seconds, sent
from snippets.reference.communication_bytes_count import Sent
from tests.benchmarks import captures
from tests.snippets.reference.ranks import on_ranks

MODULE = "snippets.reference.communication"


def ring(values: list[list[int]]) -> tuple[list[int], list[int]]:
    """Reduce-scatter, then all-gather, in place: how many chunks each rank sent in either; each has one per rank."""
    ranks = len(values)
    passes = []
    for adds in (True, False):
        passes.append([0] * ranks)
        for step in range(ranks - 1):
            moving = [(rank, (rank - step + (0 if adds else 1)) % ranks) for rank in range(ranks)]
            for (rank, chunk), value in zip(moving, [values[rank][chunk] for rank, chunk in moving], strict=True):
                to = (rank + 1) % ranks
                values[to][chunk] = values[to][chunk] + value if adds else value
                passes[-1][rank] += 1
    return passes[0], passes[1]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_bytes_are_those_of_a_ring(ranks: int) -> None:
    values = [[10**rank + chunk for chunk in range(ranks)] for rank in range(ranks)]
    sums = [sum(column) for column in zip(*values, strict=True)]
    reduced, gathered = ring(values)
    assert values == [sums] * ranks
    assert {sent("reduce-scatter", ranks, ranks)} == set(reduced)
    assert {sent("all-gather", ranks, ranks)} == set(gathered)
    assert sent("all-reduce", ranks, ranks) == reduced[0] + gathered[0]
    assert sent("all-to-all", ranks, ranks) == ranks - 1 and sent("send/recv", 7, ranks) == 7


RATES = {"all-reduce": {8 * KiB: 20e-6, MiB: 60e-6, 64 * MiB: 500e-6}}


def test_times_are_on_the_line_between_measured_sizes() -> None:
    for size, took in RATES["all-reduce"].items():
        assert seconds("all-reduce", size, RATES) == pytest.approx(took)
    assert seconds("all-reduce", (MiB + 64 * MiB) / 2, RATES) == pytest.approx(280e-6)
    shuffled = {"all-reduce": dict(reversed(RATES["all-reduce"].items()))}
    assert seconds("all-reduce", 516 * KiB, shuffled) == pytest.approx(40e-6)


@pytest.mark.parametrize("size", [8 * KiB - 1, 64 * MiB + 1])
def test_sizes_outside_the_measured_range_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"all-reduce: measured from 8192 to 67108864 bytes, got {size}"):
        seconds("all-reduce", size, RATES)


def test_gradients_take_as_many_buckets_as_they_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communication, "measure", lambda operations: {name: RATES[name] for name in operations})
    model = nn.Sequential(nn.Linear(MiB, 2, bias=False), nn.Linear(2, MiB))  # 8 MiB of gradients, and frozen ones
    model[1].requires_grad_(False)
    assert communication.gradient_seconds(model, bucket=MiB) == pytest.approx(8 * 60e-6)


# ---- real collectives ----------------------------------------------------------------------------------------------


def counted() -> list:
    """What each operation sends, and the times that this rank returns."""
    found = {}
    for operation in OPERATIONS:
        call = communication.call_of(operation, 8 * KiB, torch.bfloat16)
        with Sent() as each:
            call()
        found[operation] = dict(each.bytes)
    return [found, communication.measure(["all-reduce"], (KiB, 2 * KiB), torch.float32)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_is_timed_sends_what_the_formula_says(ranks: int, tmp_path: Path) -> None:
    found = on_ranks(counted, ranks, tmp_path)
    expected = {operation: {operation: sent(operation, 8 * KiB, ranks)} for operation in OPERATIONS}
    assert all(by_operation == expected for by_operation, _ in found)
    assert all(times == found[0][1] for _, times in found), "the slowest rank's, on all ranks"
    assert all(value > 0 for value in found[0][1]["all-reduce"].values())


def test_the_script_prints_tables_of_its_own_record(script) -> None:
    done = script(MODULE)
    assert done.returncode == 0, done.stderr
    found = captures.sections(done.stdout)
    assert list(found) == ["time", "bandwidth", "fp32", "alone", "predicted", "rates"]
    assert report(found["rates"].strip()) == done.stdout.strip()
    rates = rates_of(found["rates"], 2)
    assert list(rates) == list(OPERATIONS)
    took = rates["all-reduce"][MiB]
    line = next(line for line in found["time"].splitlines() if line.startswith("all-reduce, 2 ranks"))
    assert line.split()[-1] == f"{took * 1e6:.1f}"
    assert len(found["predicted"].splitlines()) == len(OPERATIONS) * len(communication.SMALL_BETWEEN)
    assert max(map(len, "".join(found[name] for name in found if name != "rates").splitlines())) <= captures.WIDTH


def row(ranks: int, took: float, how: str = "queued", dtype: str = "bfloat16") -> list[str]:
    sizes = communication.BETWEEN if how == "between" else communication.SIZES
    found = {"ranks": ranks, "dtype": dtype, "how": how, "seconds": {size: took * size for size in sizes}}
    return [json.dumps(found | {"operation": operation}) for operation in OPERATIONS]


def test_a_record_of_more_ranks_adds_their_rows() -> None:
    kinds = ({}, {"dtype": "float32"}, {"how": "alone"}, {"how": "between"})
    record = "\n".join(line for ranks in (8, 2) for kind in kinds for line in row(ranks, 1e-9 / ranks, **kind))
    found = captures.sections(report(record))
    rows = [line.split("  ")[0] for line in found["bandwidth"].splitlines()[1:]]
    assert rows == [f"{operation}, {ranks} ranks" for operation in OPERATIONS for ranks in (2, 8)]
    assert found["bandwidth"].splitlines()[2].split()[-7:] == ["14.0"] * 7  # 2 * 7/8 of the bytes in 1/8 ns each
    assert found["predicted"].count("error  +0.0%") + found["predicted"].count("error  -0.0%") == 30
    assert max(map(len, (line for name in found if name != "rates" for line in found[name].splitlines()))) <= 112


@pytest.mark.parametrize(("gpus", "ranks"), [(0, [2]), (1, [2]), (2, [2]), (4, [2, 4]), (6, [2, 4, 6]), (8, [2, 4, 8])])
def test_what_is_measured_follows_from_the_gpus(gpus: int, ranks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert communication.worlds() == ranks
