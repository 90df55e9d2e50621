"""Join the ranks that torchrun starts, and go on after it has started them again.

torchrun runs this file by its path, so it imports PyTorch alone.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


# --8<-- [start:start]
def start(limit: float = 600) -> torch.device:
    """Join the group that torchrun describes. `limit`: seconds until a collective times out."""
    on_gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=timedelta(seconds=limit))
    return device


# --8<-- [end:start]


# --8<-- [start:dies]
@record  # writes the exception into this rank's error file
def dies(folder: Path) -> None:
    """A training loop that goes on after a restart; rank 1 fails in its first life."""
    device = start()
    rank, life = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    saved = folder / "step.txt"  # a checkpoint, in your loop
    first = int(saved.read_text()) if saved.exists() else 0
    if rank == 0:
        print(f"life {life} begins at step {first}", time.time(), flush=True)
    for step in range(first, 6):
        if rank == 1 and life == 0 and step == 3:
            print("rank 1 dies in step 3", time.time(), flush=True)
            raise RuntimeError("a bad sample")
        dist.all_reduce(torch.ones(4, device=device))
        if rank == 0:
            if device.type == "cuda":
                torch.cuda.synchronize()  # a step counts once it is done, not once it is enqueued
            saved.write_text(str(step + 1))
    dist.destroy_process_group()


# --8<-- [end:dies]


def restarted(folder: Path) -> subprocess.Popen:
    """torchrun, which starts all ranks again after one has died."""
    folder.mkdir(parents=True)
    options = [
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=1",
        f"--log-dir={folder}",
        "--monitor-interval=0.1",
    ]
    command = [sys.executable, "-m", "torch.distributed.run", *options]
    command += [__file__, "dies", str(folder)]
    # Else ranks of the second life may read addresses of the first (pytorch issue 135712).
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True)


def after_restart(process: subprocess.Popen, folder: Path, seconds: float = 120) -> None:
    try:
        printed, said = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    lines = re.findall(r"(life \d.*|rank 1 dies.*) (\d+\.\d+)$", printed, re.MULTILINE)
    for line, _ in lines:
        print(line)
    (error,) = folder.rglob("attempt_0/1/error.json")
    print(f"attempt_0/1/error.json: {json.loads(error.read_text())['message']['message']}")
    if process.returncode:
        raise RuntimeError(f"torchrun ended with {process.returncode}:\n{said}")
    at = {line: float(when) for line, when in lines}
    died = next(when for line, when in at.items() if "dies" in line)
    print(f"torchrun ended with {process.returncode}; {max(at.values()) - died:.1f} s from death to the next step")


if __name__ == "__main__":
    if sys.argv[1:2] == ["dies"]:
        dies(Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as name:
            after_restart(restarted(Path(name) / "dies"), Path(name) / "dies")
