"""Settings that must stand before a test imports Triton or compiles anything, and scripts that run once."""

import atexit
import functools
import gc
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read with torch: numpy's products here are of small tiles
import torch

from tests.forked import RARELY
from tests.lighter import lighten

pytest_plugins = ["tests.gpu", "tests.remembered", "tests.seconds", "tests.site.visited"]

ROOT = Path(__file__).parents[1]
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
HERE = "cuda" if torch.cuda.is_available() else "cpu"

TRACE = logging.getLogger("torch.__trace")
TRACE.propagate = True  # pytest gives a logger that does not a handler, and with one Dynamo writes all that it does

gc.disable()  # while tests are collected: it took a quarter of that
atexit.register(gc.freeze)  # nor is all of torch gone through at the end, here or in what is started
STARTED = str(ROOT / "tests" / "started")
if STARTED not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (STARTED, os.environ.get("PYTHONPATH"))))
if HERE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")  # what calls a package's kernels, few times
for compiler in ("TORCHINDUCTOR", "TRITON"):  # a first torch.compile is slow; and the home folder plays no part
    os.environ.setdefault(f"{compiler}_CACHE_DIR", str(ROOT / ".cache" / compiler.removeprefix("TORCH").lower()))
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait leave the core to the other tests
if processes := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):  # each has a share of the cores, and so have its programs
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, CORES // int(processes))))
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The site's build comes first; what pages show last, when most of its scripts have run: no process waits long."""
    items.sort(key=lambda item: {"test_build.py": 0, "test_blocks.py": 2, "test_outputs.py": 3}.get(item.path.name, 1))


def pytest_collection_finish() -> None:
    """From here on garbage is collected, but rarely: Dynamo and Inductor make many objects, and few in cycles.

    Now that they are imported, what they note along the way can be left out.
    """
    gc.set_threshold(*RARELY)
    gc.enable()
    lighten()


@pytest.fixture(scope="module", autouse=True)
def few_objects() -> None:
    """A timing begins with a collection: it leaves out what was here before a file's tests, all of torch and pytest."""
    if HERE == "cuda":
        gc.unfreeze()  # what an earlier file left in the memory of the GPU goes
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def forked() -> Iterator[Callable[..., CompletedProcess[str]]]:
    """`forked(command, folder, device)`: how `python COMMAND` ended, under the settings of captures.

    Each process of a run has a server of its own for each device, from its first script on.
    """
    from tests.benchmarks import captures
    from tests.forked import Server

    servers: dict[str, Server] = {}

    def finished(command: list[str], folder: Path = ROOT, device: str = HERE) -> CompletedProcess[str]:
        if device not in servers:
            servers[device] = Server(captures.environment(device), ROOT)
        return servers[device].run(command, folder, captures.SECONDS)

    yield finished
    for server in servers.values():
        server.close()


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Callable[..., CompletedProcess[str]]:
    """`once(key, run)`: what `run()` returned for this key, in this run of the tests or an earlier one.

    One that ended well is remembered; it runs again once in twenty, and with --fresh.
    """
    from tests import remembered

    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    fresh = pytestconfig.getoption("--fresh") or HERE == "cuda"
    return functools.partial(remembered.once, shared, fresh)


@pytest.fixture(scope="session")
def key() -> Callable[..., Path]:
    """`key(module, *more)`: by what the end of `python -m module` is remembered."""
    from tests import remembered

    return functools.partial(remembered.printed_by, ROOT)


@pytest.fixture(scope="session")
def script(
    forked: Callable[..., CompletedProcess[str]],
    once: Callable[..., CompletedProcess[str]],
    key: Callable[..., Path],
) -> Callable[..., CompletedProcess[str]]:
    """`script(module, device, *arguments)`: how `python -m module` ended, under the settings of captures.

    It runs once for all tests that ask, whichever process of the run they are in: a page's command, a page's captured
    output and the snippet's own test mean the same run.
    """
    from tests.benchmarks import captures

    def finished(module: str, device: str = HERE, *arguments: str) -> CompletedProcess[str]:
        run = key(module, repr([captures.ENVIRONMENT[device], arguments]))
        if device == "cuda":  # a GPU that the server has asked for is lost to its children
            return once(run, lambda: captures.finished(module, device, *arguments))
        return once(run, lambda: forked(["-m", module, *arguments], device=device))

    return finished
