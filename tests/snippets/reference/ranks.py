"""Runs a function on several ranks: processes of their own, gloo on the CPU, and a time after which all are ended."""

import gc
import json
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.multiprocessing as processes

SECONDS = 100
PRELOADED = [  # what is not installed is left out
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "transformers.models.llama.modeling_llama",
    "snippets.examples.multi_gpu_overlap",
]


def on_ranks(work: Callable[[], object], ranks: int, folder: Path) -> list:
    """What `work()`, a function of a module, returned on each rank; it can be written as JSON.

    Raises:
        TimeoutError: a rank was not done in time. All are ended, as they are after an error of any.
    """
    multiprocessing.set_forkserver_preload(PRELOADED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")  # for the server, and so for all ranks
        forkserver.ensure_running()
    given = work, ranks, str(folder)
    running = processes.start_processes(_rank, given, ranks, join=False, start_method="forkserver")
    end = time.monotonic() + SECONDS
    try:
        while not running.join(timeout=1):
            if time.monotonic() > end:
                raise TimeoutError(f"{work.__name__}: expected {ranks} ranks to be done in {SECONDS} s")
    finally:
        for process in running.processes:
            process.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def _rank(rank: int, work: Callable[[], object], ranks: int, folder: str) -> None:
    gc.freeze()  # what the server has imported: no collection looks at it, or copies it
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=ranks)
    found = work()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
