"""What each strategy sends is what is predicted, to the byte, on two and four processes."""

import functools
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import (
    multi_gpu,
    multi_gpu_bytes,
    multi_gpu_measured,
    multi_gpu_predict,
)
from snippets.reference.communication import sent
from tests.snippets.reference.ranks import on_ranks

Found = Callable[[int], dict]


def eager() -> dict:
    torch.set_num_threads(1)
    multi_gpu_measured.WARM, multi_gpu_measured.SWEEP = 0, multi_gpu_measured.SWEEP[::3]  # times do not count here
    found = multi_gpu_measured.unknown()
    for part in multi_gpu_measured.measured(
        multi_gpu_measured.names_for(dist.get_world_size()), dist.get_rank(), torch.device("cpu")
    ):
        multi_gpu_measured.add(found, part)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What the first of so many ranks has found."""
    return functools.cache(lambda ranks: on_ranks(eager, ranks, tmp_path_factory.mktemp("ranks"))[0])


PREDICTED = [name for name, strategy in multi_gpu_bytes.EAGER.items() if strategy.works]


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("name", PREDICTED)
def test_bytes_and_memory_are_as_predicted(name: str, processes: int, found: Found) -> None:
    seen = found(processes)
    assert not seen["failed"]
    run, base = seen["runs"][name], found(1)["runs"][name]
    guess = multi_gpu_predict.predict(name, base, multi_gpu_measured.by_size(seen["rates"]), processes)
    assert sorted((op, int(size)) for op, size in guess["messages"]) == sorted(map(tuple, run["messages"]))
    for part in ("parameters", "gradients", "state"):
        assert guess[part] == run[part], part


def test_one_gpu_sends_nothing(found: Found) -> None:
    alone = found(1)["runs"]
    assert alone["one GPU"]["messages"] == [] and not found(1)["rates"]
    assert sum(sent(*message, 1) for run in alone.values() for message in run["messages"]) == 0


def test_scaled_links_are_slower_only_between_nodes(found: Found) -> None:
    rates, base = multi_gpu_measured.by_size(found(2)["rates"]), found(1)["runs"]["DDP"]
    size = {n: multi_gpu.scaled("DDP", base, rates, n, 2)[0] for n in (2, 8, 64)}
    whole = 2 * base["gradients"]
    assert size == pytest.approx({2: whole / 2, 8: whole * 7 / 8, 64: whole * 63 / 64})
    assert multi_gpu.NETWORK < multi_gpu.NVLINK


def test_a_run_that_was_cut_off_says_what_it_has(found: Found, capsys: pytest.CaptureFixture[str]) -> None:
    runs = {name: found(2)["runs"][name] for name in ("DDP", "FSDP2")}
    alone = {name: found(1)["runs"][name] for name in ("one GPU", "DDP")}
    cut = {1: multi_gpu_measured.unknown(), 2: multi_gpu_measured.unknown()}
    multi_gpu_measured.add(cut[1], {"runs": alone})
    multi_gpu_measured.add(cut[2], {"rates": found(2)["rates"], "runs": runs, "failed": {"FSDP2, large": "too large"}})
    multi_gpu.say(cut)
    printed = capsys.readouterr().out
    assert "\nDDP " in printed and "FSDP2, large, 2 GPUs: too large" in printed
    assert "\nFSDP2 " not in printed, "its step on one GPU is missing"
    multi_gpu.say({1: multi_gpu_measured.unknown(), 2: multi_gpu_measured.unknown()})
