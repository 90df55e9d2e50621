"""No process is left behind."""

import multiprocessing
import time
from pathlib import Path

import torch

from snippets.examples import multi_gpu_failures_cases
from snippets.examples.multi_gpu_failures_group import Group, outputs


def sleeps(rank: int, device: torch.device) -> None:
    time.sleep(multi_gpu_failures_cases.FOREVER)


def test_no_process_is_left_behind(tmp_path: Path) -> None:
    hanging = Group(sleeps, tmp_path / "hanging").begin()
    start = time.monotonic()
    outputs([hanging], 1.0)
    assert time.monotonic() - start < 10 and [each.exitcode for each in hanging.processes] == [-9, -9]
    assert not multiprocessing.active_children()
