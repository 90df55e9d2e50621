"""One GPU for many processes of tests: what takes much of its memory, or measures its time, waits for its turn.

The number of processes is lowered to what the GPUs have room for, wherever it comes from.
"""

import contextlib
import fcntl
import gc
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

GIB = 2**30
ALL = 2**63  # bytes to ask for where all is wanted that may be claimed
EACH = 5 * GIB  # of a GPU, for one process: its context, the programs that it starts, and tests that take little
CLAIMS = Path(tempfile.gettempdir()) / f"ridgepoint-tests-{os.getuid()}"
_held = 0  # GiB that this process has claimed


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "idle_gpu: measures a GPU's time, so it runs last, and no other test beside it")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that want the GPU for themselves come last: they wait until no other test runs."""
    if torch.cuda.is_available():
        items.sort(key=wants_it_idle)


def wants_it_idle(item: pytest.Item) -> bool:
    return item.get_closest_marker("idle_gpu") is not None


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Lower the number of processes to what the GPUs have room for; `-n` and `nox -s tests` ask for cores."""
    if torch.cuda.is_available() and config.pluginmanager.hasplugin("xdist"):
        config.option.maxprocesses = min(config.option.maxprocesses or sys.maxsize, most(memory_of_each()))


def memory_of_each() -> list[int]:
    """Bytes of every GPU."""
    return [torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count())]


def most(memory: list[int]) -> int:
    """How many processes GPUs of so many bytes have room for."""
    return max(1, len(memory) * (min(memory) // EACH))


@contextlib.contextmanager
def room(nbytes: int) -> Iterator[None]:
    """Wait until this process may use so many bytes of the GPU, and claim them meanwhile; less than a GiB is not asked.

    All claims together are at most two fifths of the GPU's memory, and one that is larger has them all. A claim
    inside of another adds nothing.
    """
    global _held
    if _held or not torch.cuda.is_available() or nbytes < GIB:
        yield
        return
    all_of_them = memory_of_each()[0] // GIB * 2 // 5
    _held = min(nbytes // GIB, all_of_them)
    try:
        with claimed(CLAIMS, os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0], _held, all_of_them):
            yield
            torch.cuda.empty_cache()
    finally:
        _held = 0


@contextlib.contextmanager
def claimed(folder: Path, of: str, wanted: int, there: int) -> Iterator[None]:
    """So many of the parts of something that is there for all processes: each part is a lock.

    Who waits holds the gate, so that nobody passes it by, and two that each have a half do not wait for each other.
    """
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as parts:
        with (folder / f"{of}-gate").open("w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            free, got = list(range(there)), 0
            while got < wanted:
                for number in list(free):
                    part = (folder / f"{of}-{number}").open("w")
                    try:
                        fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        part.close()
                        continue
                    parts.enter_context(part)
                    free.remove(number)
                    got += 1
                    if got == wanted:
                        break
                else:
                    time.sleep(0.02)
        yield


@contextlib.contextmanager
def turn(folder: Path, alone: bool) -> Iterator[None]:
    """Beside others, or alone: who wants to be alone waits until nobody is there, and lets others in meanwhile."""
    folder.mkdir(exist_ok=True)
    with (folder / "turn").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test that measures has the GPU for itself; after each, its memory is free, also where it failed."""
    if torch.cuda.is_available():
        with turn(CLAIMS, alone=wants_it_idle(item)):
            result = yield
    else:
        result = yield
    if torch.cuda.is_initialized():
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            sys.__dict__.pop(name, None)
        if torch.cuda.memory_allocated() >= GIB:
            gc.collect()
        with contextlib.suppress(RuntimeError):  # a test may have broken what the process has of the GPU
            torch.cuda.empty_cache()
    return result
