"""Accumulation reduces once, groups are gathered as the page says, and a reduction in bf16 halves its bytes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples import multi_gpu_overlap
from snippets.examples.llama_model import make_model
from snippets.examples.multi_gpu_bytes import SIZES
from snippets.examples.multi_gpu_order_mistakes import counted
from snippets.examples.multi_gpu_overlap import MICRO
from snippets.examples.multi_gpu_strategies import sharded
from tests.snippets.reference.ranks import on_ranks

ASKED = ["overlap", "accumulation", "precision"]
Messages = Callable[[str, str], list[int]]


def cases() -> dict:
    torch.set_num_threads(1)
    found: dict = {}
    for part in multi_gpu_overlap.measured(ASKED, torch.distributed.get_rank(), torch.device("cpu")):
        found |= part
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What the first of two ranks has found."""
    return on_ranks(cases, 2, tmp_path_factory.mktemp("ranks"))[0]


@pytest.fixture(scope="module")
def messages(found: dict) -> Messages:
    """Sizes of a case's messages of one kind."""
    return lambda name, operation: [size for op, size in found[name]["messages"] if op == operation]


def test_only_the_last_micro_step_reduces(messages: Messages) -> None:
    for wrapped, saved, operation in (("DDP", "no_sync", "all-reduce"), ("FSDP2", "last only", "reduce-scatter")):
        each = messages(f"{wrapped}, each", operation)
        assert each and len(each) == MICRO * len(messages(f"{wrapped}, {saved}", operation))


def test_fsdp2_still_gathers_in_each_micro_step(messages: Messages) -> None:
    assert messages("FSDP2, each", "all-gather") == messages("FSDP2, last only", "all-gather")


def test_the_root_alone_is_one_message_each_way(found: dict) -> None:
    assert [op for op, _ in found["FSDP2, root only"]["messages"]] == ["all-gather", "reduce-scatter"]


def test_a_reduction_in_bf16_halves_its_bytes_and_moves_the_gradients(found: dict, messages: Messages) -> None:
    whole, half = (sum(messages(f"FSDP2, {kind}", "reduce-scatter")) for kind in ("fp32", "bf16"))
    assert whole == 2 * half
    assert found["FSDP2, fp32"]["distance"] == 0
    assert 1e-4 < found["FSDP2, bf16"]["distance"] < 1e-2  # bf16 has 8 bits


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
