"""Ranks in processes of their own, each with its output in a file."""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from snippets.examples.multi_gpu_failures_restart import start

PRELOADED = ["torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp", "torch._dynamo"]


def say(*words: object) -> None:
    print(">", *words, flush=True)


# --8<-- [start:group]
@dataclass
class Group:
    """Ranks of one case, each in a process of its own, with its output in a file.

    It does a launcher's work: when a rank fails, the others get `grace` seconds, and are ended.
    """

    case: Callable[[int, torch.device], object]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 2
    limit: float = 2.0  # seconds until a collective times out
    grace: float = 0.5

    def begin(self) -> "Group":
        self.folder.mkdir(parents=True)
        self.ended: dict[int, float] = {}
        self.store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        clean = multiprocessing.get_context("forkserver")  # imports torch once, and has no threads to lose
        clean.set_forkserver_preload(PRELOADED)
        names: dict[str, object] = {
            "WORLD_SIZE": self.ranks,
            "LOCAL_WORLD_SIZE": self.ranks,
            "TORCHELASTIC_USE_AGENT_STORE": True,
        }
        names |= {"MASTER_ADDR": "localhost", "MASTER_PORT": self.store.port}
        self.processes = []
        for rank in range(self.ranks):
            own = names | {"RANK": rank, "LOCAL_RANK": rank} | dict(self.environment)
            environment = {name: str(value) for name, value in own.items()}
            arguments = self.case, self.text(rank), environment, self.limit
            self.processes.append(clean.Process(target=run_rank, args=arguments, daemon=True))
            self.processes[-1].start()
        return self

    def over(self, deadline: float) -> bool:
        """Note which ranks have ended; end the others some seconds after a failure, and all at the deadline."""
        for rank, each in enumerate(self.processes):
            if rank not in self.ended and not each.is_alive():
                self.ended[rank] = time.time()
        failed = [at for rank, at in self.ended.items() if self.processes[rank].exitcode]
        if len(self.ended) < self.ranks and time.time() < min([deadline, *(at + self.grace for at in failed)]):
            return False
        for each in self.processes:
            each.kill()
            each.join()
        return True

    def text(self, rank: int) -> Path:
        return self.folder / f"{rank}.txt"


# --8<-- [end:group]


def run_rank(case: Callable, text: Path, environment: dict[str, str], limit: float) -> None:
    """Be one rank, with all output in a file; leave without waiting for other ranks."""
    output = os.open(text, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    os.environ.update(environment)
    dist.set_debug_level_from_env()
    torch.set_num_threads(1)
    try:
        case(int(environment["RANK"]), start(limit))
    except Exception as error:  # noqa: BLE001, all that a rank can raise is shown
        say(f"{type(error).__name__}: {error}")
        os._exit(1)
    os._exit(0)


def outputs(groups: Iterable[Group], seconds: float = 90) -> list[list[str]]:
    """What each rank of each group printed, when all have ended, or were."""
    groups, deadline = list(groups), time.time() + seconds
    left = groups
    while left := [group for group in left if not group.over(deadline)]:
        time.sleep(0.01)
    return [[group.text(rank).read_text(errors="replace") for rank in range(group.ranks)] for group in groups]
