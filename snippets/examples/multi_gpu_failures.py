"""What goes wrong with several ranks, provoked in real processes: what each rank prints, and after how long.

`python -m snippets.examples.multi_gpu_failures` takes two GPUs and NCCL, or two CPU processes and gloo.
"""

import pickle
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import torch
from torch.distributed.constants import default_pg_nccl_timeout, default_pg_timeout
from torch.nn.parallel import DistributedDataParallel

from snippets.examples.multi_gpu_failures_cases import (
    compiles,
    evened,
    late,
    monitored,
    nan,
    shapes,
    sharded,
    skipped,
    uneven,
)
from snippets.examples.multi_gpu_failures_group import Group, outputs
from snippets.examples.multi_gpu_failures_restart import after_restart, dies, restarted

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


# --8<-- [start:flight]
def flight(folder: Path) -> None:
    """Each rank's last collectives, from what NCCL's flight recorder wrote."""
    for path in sorted(folder.glob("flight_*")):
        for entry in pickle.loads(path.read_bytes())["entries"][-2:]:
            what = f"{entry['profiling_name']} {entry['input_sizes']} {entry['state']}"
            print(f"flight recorder, rank {path.name[-1]}: collective {entry['collective_seq_id']}, {what}")


# --8<-- [end:flight]


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
    if sys.argv[1:2] == ["dies"]:  # torchrun -m snippets.examples.multi_gpu_failures dies FOLDER
        dies(Path(sys.argv[2]))
    else:
        main()
