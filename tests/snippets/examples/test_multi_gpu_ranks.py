"""Nothing of a case stays in the next one's memory, ranks leave together, and a trace is read as by hand."""

import functools
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from snippets.examples import multi_gpu_ranks
from snippets.examples.multi_gpu_ranks import GIB, LEFT, lines, nothing_left, told
from tests.snippets.reference.ranks import on_ranks


def leftovers() -> list:
    """What is said of memory that stays, on one rank of two, and how often memory is asked for that goes late."""
    try:
        nothing_left(lambda: dist.get_rank() * 5 * GIB, tries=2, pause=0)
        said = ""
    except RuntimeError as error:
        said = str(error)
    late = iter([5 * GIB, LEFT + 1, LEFT])
    nothing_left(lambda: next(late), pause=0)
    return [said, list(late)]


def test_memory_that_stays_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    expected = "expected at most 64 MiB left of the case before, got 5120 MiB"
    assert on_ranks(leftovers, 2, tmp_path) == [[expected, []]] * 2


# ---- what torchrun starts, here without it --------------------------------------------------------------------------

PRINTS = """
import sys, time
print('noise', flush=True)
print('{"a": 1}', flush=True)
if sys.argv[-1] == "waits":
    time.sleep(10)
sys.exit(3 if sys.argv[-1] == "fails" else 0)
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen]:
    """The processes, which run PRINTS and get the program's last word."""
    processes: list[subprocess.Popen] = []

    def popen(call: list[str], **options: object) -> subprocess.Popen:
        processes.append(real([sys.executable, "-c", PRINTS, call[-1]], **options))
        return processes[-1]

    real = subprocess.Popen
    monkeypatch.setattr(multi_gpu_ranks.subprocess, "Popen", popen)
    return processes


def test_parts_are_told_beside_other_lines(started: list[subprocess.Popen]) -> None:
    assert list(told("ends", 2)) == [{"a": 1}]


def test_ranks_that_fail_are_an_error_after_what_they_told(started: list[subprocess.Popen]) -> None:
    parts = told("fails", 2)
    assert next(parts) == {"a": 1}
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        next(parts)


def test_a_line_is_there_at_once_and_who_stops_reading_ends_the_ranks(started: list[subprocess.Popen]) -> None:
    reading = lines(["-m", "waits"], 2)
    assert [next(reading), next(reading)] == ["noise\n", '{"a": 1}\n']
    assert started[0].poll() is None
    reading.close()
    assert started[0].returncode == -signal.SIGTERM


def test_ranks_leave_after_a_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(multi_gpu_ranks, "joined", lambda backend: seen.append(f"joins {backend}"))
    for name in ("barrier", "destroy_process_group"):
        monkeypatch.setattr(dist, name, functools.partial(seen.append, name))
    multi_gpu_ranks.among_ranks(lambda: seen.append("works"), "gloo")
    assert seen == ["joins gloo", "works", "barrier", "destroy_process_group"]
