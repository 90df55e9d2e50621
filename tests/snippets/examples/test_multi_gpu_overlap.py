"""Accumulation reduces once, groups are gathered as the page says, and a reduction in bf16 halves its bytes."""

import functools
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("transformers", reason="a development dependency: constraints.txt names its version")

from snippets.examples.multi_gpu_overlap import MICRO
from tests.snippets.examples.test_multi_gpu import torchrun


@functools.cache
def found(processes: int) -> dict:
    with TemporaryDirectory() as folder:
        torchrun(processes, "multi_gpu_overlap", "--out", f"{folder}/found.json")
        return json.loads(Path(f"{folder}/found.json").read_text())


def messages(name: str, operation: str, processes: int) -> list[int]:
    return [size for op, size in found(processes)[name]["messages"] if op == operation]


@pytest.mark.parametrize("processes", [2, 4])
def test_only_the_last_micro_step_reduces(processes: int) -> None:
    for wrapped, saved, operation in (("DDP", "no_sync", "all_reduce"), ("FSDP2", "last only", "reduce_scatter")):
        each = messages(f"{wrapped}, each", operation, processes)
        assert each and len(each) == MICRO * len(messages(f"{wrapped}, {saved}", operation, processes))


def test_fsdp2_still_gathers_in_each_micro_step() -> None:
    assert messages("FSDP2, each", "all_gather", 2) == messages("FSDP2, last only", "all_gather", 2)


def test_the_root_alone_is_one_message_each_way() -> None:
    assert [op for op, _ in found(2)["FSDP2, root only"]["messages"]] == ["all_gather", "reduce_scatter"]


def test_a_reduction_in_bf16_halves_its_bytes_and_moves_the_gradients() -> None:
    whole, half = (sum(messages(f"FSDP2, {kind}", "reduce_scatter", 2)) for kind in ("fp32", "bf16"))
    assert whole == 2 * half
    assert found(2)["FSDP2, fp32"]["distance"] == 0
    assert 1e-4 < found(2)["FSDP2, bf16"]["distance"] < 1e-2  # bf16 has 8 bits
