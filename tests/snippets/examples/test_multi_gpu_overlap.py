"""Accumulation reduces once, groups are gathered as the page says, and a reduction in bf16 halves its bytes."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import multi_gpu_overlap
from snippets.examples.llama_model import make_model
from snippets.examples.multi_gpu_bytes import SIZES
from snippets.examples.multi_gpu_order_mistakes import counted
from snippets.examples.multi_gpu_overlap import MICRO
from snippets.examples.multi_gpu_strategies import sharded
from tests.snippets.reference.ranks import on_ranks

ASKED = {2: ["overlap", "accumulation", "precision"], 4: ["accumulation"]}
Messages = Callable[[str, str, int], list[int]]


def cases() -> dict:
    torch.set_num_threads(1)
    found: dict = {}
    for part in multi_gpu_overlap.measured(ASKED[dist.get_world_size()], dist.get_rank(), torch.device("cpu")):
        found |= part
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict]:
    """What the first of so many ranks has found."""
    return functools.cache(lambda ranks: on_ranks(cases, ranks, tmp_path_factory.mktemp("ranks"))[0])


@pytest.fixture(scope="module")
def messages(found: Callable[[int], dict]) -> Messages:
    """Sizes of a case's messages of one kind."""
    return lambda name, operation, ranks: [size for op, size in found(ranks)[name]["messages"] if op == operation]


@pytest.mark.parametrize("processes", [2, 4])
def test_only_the_last_micro_step_reduces(processes: int, messages: Messages) -> None:
    for wrapped, saved, operation in (("DDP", "no_sync", "all-reduce"), ("FSDP2", "last only", "reduce-scatter")):
        each = messages(f"{wrapped}, each", operation, processes)
        assert each and len(each) == MICRO * len(messages(f"{wrapped}, {saved}", operation, processes))


def test_fsdp2_still_gathers_in_each_micro_step(messages: Messages) -> None:
    assert messages("FSDP2, each", "all-gather", 2) == messages("FSDP2, last only", "all-gather", 2)


def test_the_root_alone_is_one_message_each_way(found: Callable[[int], dict]) -> None:
    assert [op for op, _ in found(2)["FSDP2, root only"]["messages"]] == ["all-gather", "reduce-scatter"]


def test_a_reduction_in_bf16_halves_its_bytes_and_moves_the_gradients(
    found: Callable[[int], dict], messages: Messages
) -> None:
    whole, half = (sum(messages(f"FSDP2, {kind}", "reduce-scatter", 2)) for kind in ("fp32", "bf16"))
    assert whole == 2 * half
    assert found(2)["FSDP2, fp32"]["distance"] == 0
    assert 1e-4 < found(2)["FSDP2, bf16"]["distance"] < 1e-2  # bf16 has 8 bits


def reduced() -> list[int]:
    """Bytes of all reductions, with a dtype for them and without."""
    found, ids = [], torch.ones(1, 8, dtype=torch.long)
    for policy in (
        MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32),
        MixedPrecisionPolicy(torch.bfloat16),
    ):
        model = sharded(make_model(SIZES, torch.device("cpu"), torch.float32), policy=policy)
        with counted() as messages:
            model(input_ids=ids, labels=ids).loss.backward()
        found.append(sum(size for operation, size in messages if operation == "reduce-scatter"))
    return found


def test_a_policy_that_names_no_dtype_for_reductions_reduces_in_bf16(tmp_path: Path) -> None:
    named, left_out = on_ranks(reduced, 2, tmp_path)[0]
    assert named == 2 * left_out > 0
