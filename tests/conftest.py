"""Settings that must stand before a test imports Triton or compiles anything, and scripts that run once."""

import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

pytest_plugins = ["tests.remembered", "tests.seconds"]

ROOT = Path(__file__).parents[1]
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
FRESH: set[str] = set()  # modules of scripts that show what is decided before torch is imported
HERE = "cuda" if torch.cuda.is_available() else "cpu"

if HERE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
for compiler in ("TORCHINDUCTOR", "TRITON"):  # a first torch.compile is slow; and the home folder plays no part
    os.environ.setdefault(f"{compiler}_CACHE_DIR", str(ROOT / ".cache" / compiler.removeprefix("TORCH").lower()))
if processes := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):  # each has a share of the cores, and so have its programs
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, CORES // int(processes))))
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


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
def script(
    forked: Callable[..., CompletedProcess[str]], tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Callable[..., CompletedProcess[str]]:
    """`script(module, device, *arguments)`: how `python -m module` ended, under the settings of captures.

    A script runs once for all tests that ask, whichever process of the run they are in: a page's command, a page's
    captured output and the snippet's own test mean the same run. One that ended well before, with the same files that
    it reaches and the same versions, does not run again, but for one in twenty and with --fresh.
    """
    from filelock import FileLock  # comes with torch

    from tests import remembered
    from tests.benchmarks import captures

    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    def run(module: str, device: str, arguments: tuple[str, ...]) -> CompletedProcess[str]:
        if module in FRESH:
            return captures.finished(module, device, *arguments)
        return forked(["-m", module, *arguments], device=device)

    @functools.cache
    def finished(module: str, device: str = HERE, *arguments: str) -> CompletedProcess[str]:
        known = remembered.printed_by(ROOT, module, repr([captures.ENVIRONMENT[device], arguments]))
        kept = shared / f"{known.name}.json"
        with FileLock(f"{kept}.lock"):
            if not kept.exists():
                past = None if pytestconfig.getoption("--fresh") else remembered.recalled(known)
                ended = past or json.dumps(vars(run(module, device, arguments)))
                kept.write_text(ended, encoding="utf-8")
                if not past and json.loads(ended)["returncode"] == 0:
                    remembered.keep_text(known, ended)
        return CompletedProcess(**json.loads(kept.read_text(encoding="utf-8")))

    return finished
