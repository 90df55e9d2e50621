"""What goes wrong with several ranks, provoked in real processes: what each rank prints, and after how long.

`python -m snippets.examples.multi_gpu_failures` takes two GPUs and NCCL, or two CPU processes and gloo.
"""

import itertools
import json
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.constants import default_pg_nccl_timeout, default_pg_timeout
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

PRELOADED = ["torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp", "torch._dynamo"]
FOREVER = 600.0  # seconds that a rank sleeps which does something else; the launcher ends it


# ---- what to paste -------------------------------------------------------------------------------------------------


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


# --8<-- [start:late]
def waiting(work: Callable[[], object], device: torch.device, steps: int = 10) -> list[list[float]]:
    """Each rank's milliseconds of its own work, and of waiting for the others, per step."""
    spent, flag = torch.zeros(2, dtype=torch.float64), torch.ones(1, device=device)
    for _ in range(steps):
        times = []
        for part in (None, work, partial(dist.all_reduce, flag)):
            if part:
                part()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter())
        spent += torch.tensor([times[1] - times[0], times[2] - times[1]]) * 1e3 / steps
    every: list = [None] * dist.get_world_size()
    dist.all_gather_object(every, spent.tolist())
    return every


# --8<-- [end:late]


# --8<-- [start:together]
def together(batches: Iterable[Tensor], device: torch.device) -> Iterator[Tensor]:
    """Batches while every rank still has one: all ranks then make the same number of steps."""
    for batch in itertools.chain(batches, [None]):
        more = torch.tensor(batch is not None, dtype=torch.int32, device=device)
        dist.all_reduce(more, dist.ReduceOp.MIN)
        if not more:
            return
        yield batch


# --8<-- [end:together]


# --8<-- [start:nan]
def watch(model: nn.Module) -> list[str]:
    """Names of parameters whose own gradient on this rank, before any all-reduce, is not finite."""
    found: list[str] = []
    for name, parameter in model.named_parameters():

        def check(gradient: Tensor, name: str = name) -> None:
            if not gradient.isfinite().all():
                found.append(name)

        parameter.register_hook(check)
    return found


# --8<-- [end:nan]


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


# ---- what fails ----------------------------------------------------------------------------------------------------


def say(*words: object) -> None:
    print(">", *words, flush=True)


def model_on(device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)


def steps_of(model: nn.Module, batches: Iterable[Tensor]) -> int:
    done = 0
    for batch in batches:
        model(batch).square().mean().backward()
        done += 1
    return done


def one_step(model: Callable, x: Tensor) -> None:
    model(x).sum().backward()


def sharded(model: nn.Module) -> nn.Module:
    """FSDP2. The mesh says the device: without it, a machine with a GPU takes the GPU."""
    device = next(model.parameters()).device.type
    return fully_shard(model, mesh=init_device_mesh(device, (dist.get_world_size(),)))


def batches_of(rank: int, device: torch.device) -> list[Tensor]:
    """Uneven: five on rank 0, three on every other."""
    return [torch.randn(4, 16, device=device) for _ in range(3 if rank else 5)]


def begins() -> None:
    say("begins", time.time())


def late(rank: int, device: torch.device) -> None:
    dist.all_reduce(torch.ones(1, device=device))  # the first makes the communicator
    every = waiting(lambda: time.sleep(0.05 if rank == 1 else 0.01), device)
    if rank == 0:
        for each, (own, wait) in enumerate(every):
            say(f"rank {each}: own work {own:.1f} ms, waiting for others {wait:.1f} ms")


def uneven(wrap: Callable[[nn.Module], nn.Module], rank: int, device: torch.device) -> None:
    model = wrap(model_on(device))
    steps_of(model, batches_of(1, device))
    begins()
    if rank == 0:  # it has one batch more
        steps_of(model, batches_of(1, device)[:1])
        wait_for(device)
    time.sleep(FOREVER)  # such as: rank 1 evaluates


def evened(rank: int, device: torch.device) -> None:
    model = DistributedDataParallel(model_on(device))
    with model.join():
        done = steps_of(model, batches_of(rank, device))
    say(f"rank {rank}: DDP, join: {done} steps")
    done = steps_of(sharded(model_on(device)), together(batches_of(rank, device), device))
    say(f"rank {rank}: FSDP2, together: {done} steps")


def compiles(rank: int, device: torch.device) -> None:
    """Rank 1 meets a new length in step 3, rank 0 does not."""
    model, graphs = model_on(device), []

    def counting(graph: torch.fx.GraphModule, inputs: list) -> Callable:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("inductor" if device.type == "cuda" else "aot_eager")(graph, inputs)

    fast = torch.compile(model, backend=counting, dynamic=False)
    for step in range(5):
        x = torch.randn(8 if step < 3 or rank == 0 else 8 + step, 16, device=device)
        (own, wait) = waiting(partial(one_step, fast, x), device, steps=1)[0]
        if rank == 0:
            say(f"step {step}: rank 0 works {own:.1f} ms, then waits {wait:.1f} ms")
    say(f"rank {rank}: {len(graphs)} graph{'s' * (len(graphs) > 1)} compiled")


def skipped(rank: int, device: torch.device) -> None:
    dist.all_reduce(torch.ones(4, device=device))
    begins()
    if rank == 0:  # the mistake
        dist.all_reduce(torch.ones(8, device=device))
        wait_for(device)
    time.sleep(FOREVER)


def monitored(rank: int, device: torch.device) -> None:
    checks = dist.new_group(backend="gloo")
    begins()
    if rank == 0:
        dist.monitored_barrier(checks, timeout=timedelta(seconds=1))
    time.sleep(FOREVER)


def shapes(rank: int, device: torch.device) -> None:
    dist.all_reduce(torch.ones(4, device=device))
    begins()
    x = torch.full((4 + rank,), rank + 1.0, device=device)
    dist.all_reduce(x)
    wait_for(device)
    say(f"rank {rank}: no error, result {[round(value, 1) for value in x.tolist()]}")


def nan(rank: int, device: torch.device) -> None:
    model = DistributedDataParallel(model_on(device))
    found = watch(model.module)
    x = torch.randn(4, 16, device=device)
    if rank == 1:
        x[2, 3] = torch.nan
    model(x).square().mean().backward()
    bad = sum(not parameter.grad.isfinite().all() for parameter in model.parameters())
    say(f"rank {rank}: the hook found {', '.join(sorted(found)) or 'nothing'}; after the all-reduce, NaN in {bad} of 4")


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


# ---- processes -----------------------------------------------------------------------------------------------------


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


MATTERS = re.compile(
    r"^> (?!begins)(.*)"
    r"|(Watchdog caught collective operation timeout: .*?before timing out)"
    r"|^(?!> )(?:.*: )?(Detected mismatch between collectives.*)",
    re.MULTILINE,
)
LEFT_OUT = re.compile(  # of a message: places in files, what both ranks have in common, advice
    r"\[/\S*\] |CollectiveFingerPrint|, TensorDeviceTypes=TensorOptions\(.*?\)\)(?=\))"
    r"|\.? ?This (may indicate|is typically).*"
)


def shown(texts: Iterable[str]) -> None:
    """The lines that matter of each rank, each once, in short lines."""
    for rank, text in enumerate(texts):
        lines = dict.fromkeys("".join(filter(None, found)) for found in MATTERS.findall(text))
        watchdogs = [line for line in lines if line.startswith("Watchdog")]
        for line in (line for line in lines if line not in watchdogs[1:]):  # each thread says it in its own words
            own = line.startswith(("rank", "step"))
            line = LEFT_OUT.sub("", line)
            for part in textwrap.wrap(line if own else f"rank {rank}: {line}", 98, subsequent_indent="    "):
                print(part)


def seen(group: Group, texts: list[str]) -> None:
    """After how long the first rank ended, counted from its failing call."""
    failed = {rank: at for rank, at in group.ended.items() if group.processes[rank].exitcode}
    if not failed:
        print(f"nothing seen; limit {group.limit:.1f} s")
        return
    rank = min(failed, key=failed.__getitem__)
    began = re.search(r"begins ([\d.]+)", texts[rank])
    if began:
        code = group.processes[rank].exitcode
        print(f"rank {rank} ended with {code} after {failed[rank] - float(began[1]):.1f} s; limit {group.limit:.1f} s")


def flight(folder: Path) -> None:
    """Each rank's last collectives, from what NCCL's flight recorder wrote."""
    for path in sorted(folder.glob("flight_*")):
        for entry in pickle.loads(path.read_bytes())["entries"][-2:]:
            what = f"{entry['profiling_name']} {entry['input_sizes']} {entry['state']}"
            print(f"flight recorder, rank {path.name[-1]}: collective {entry['collective_seq_id']}, {what}")


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


FLIGHT = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
TIMED: dict[str, Callable] = {"late": late, "compiles": compiles}  # alone on the machine
WAITING: dict[str, tuple[Callable, dict[str, str]]] = {
    "uneven DDP": (partial(uneven, DistributedDataParallel), {}),
    "uneven FSDP2": (partial(uneven, sharded), {}),
    "evened": (evened, {}),
    "skipped": (skipped, FLIGHT),
    "monitored": (monitored, {}),
    "shapes": (shapes, {}),
    "shapes, detail": (shapes, DETAIL),
    "nan": (nan, {}),
}


def main() -> None:
    on_gpu = torch.cuda.device_count() >= 2
    limit, grace = (5.0, 4.0) if on_gpu else (1.0, 0.3)
    # By default, NCCL's watchdog waits a minute for the dump before it ends the process.
    quick = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case, run in TIMED.items():
            print(f"{case} ...", file=sys.stderr, flush=True)
            print(f"==== {case}")
            one = Group(run, folder / case, {"TORCHINDUCTOR_COMPILE_THREADS": "1"}, limit=60)
            shown(outputs([one.begin()])[0])
        print("all others ...", file=sys.stderr, flush=True)
        groups = {}
        for case, (run, environment) in WAITING.items():
            names = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
            where = dict.fromkeys(names, str(folder / case / "flight_"))
            groups[case] = Group(run, folder / case, environment | quick | where, limit=limit, grace=grace).begin()
        process = restarted(folder / "dies")
        for (case, group), texts in zip(groups.items(), outputs(groups.values()), strict=True):
            print(f"==== {case}")
            shown(texts)
            if any("begins" in text for text in texts):
                seen(group, texts)
            flight(folder / case)
        print("==== limits")
        for backend, default in {"gloo": default_pg_timeout, "nccl": default_pg_nccl_timeout}.items():
            print(f"{backend}: {default.total_seconds() / 60:.0f} minutes" if default else f"{backend}: not installed")
        print("==== dies")
        after_restart(process, folder / "dies")


if __name__ == "__main__":
    if sys.argv[1:2] == ["dies"]:
        dies(Path(sys.argv[2]))
    else:
        main()
