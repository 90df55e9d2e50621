"""Which mode of torch.compile pays, and when? Time, memory and compile seconds of each, on the same workloads.

    python -m snippets.compiler.modes [--workloads mlp decode ...]

On a GPU each workload and mode gets a process of its own with an empty cache, so that its seconds are those of a
machine that has never compiled anything. Several GPUs share the work. A CPU shows one mode on one workload.
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
import torch._inductor.config

from snippets.compiler.modes_measured import Row, measured, seconds
from snippets.compiler.modes_options import MODES, OPTIONS
from snippets.compiler.modes_table import descents, searches, table, totals
from snippets.compiler.modes_workloads import WORKLOADS
from snippets.validation.timing import yardstick

# ---- workloads ------------------------------------------------------------------------------------------------------


# ---- one workload in one mode ---------------------------------------------------------------------------------------


# ---- each in a process of its own -----------------------------------------------------------------------------------


def child(workload: str, mode: str) -> None:
    """What a fresh process does: get ready, say so, wait for its turn, measure, print."""
    device = torch.device("cuda")
    torch.cuda.init()
    loads_the_compiler = partial(torch.compile(lambda x: x + 1), torch.zeros(1, device=device))
    ready = seconds(loads_the_compiler, device)
    sys.stdin.readline()
    row = measured(workload, mode, device, torch.bfloat16)
    print(json.dumps(row | {"start": ready, "launch": yardstick(device)["eager_launch"]}), flush=True)


# --8<-- [start:fresh]
class Fresh:
    """A child process with a cache folder of its own."""

    def __init__(self, workload: str, mode: str, gpu: str, cores: int):
        self.job, self.folder = (workload, mode), tempfile.TemporaryDirectory()
        fresh = {
            "CUDA_VISIBLE_DEVICES": gpu,
            "TORCHINDUCTOR_CACHE_DIR": self.folder.name,
            "TRITON_CACHE_DIR": str(Path(self.folder.name) / "triton"),
            "TORCHINDUCTOR_COMPILE_THREADS": str(cores),
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0",  # within the process they work, as they do for everybody
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, "--child", workload, mode],
            env=os.environ | fresh,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def row(self, patience: float = 240) -> Row:
        """Its turn: what it measured, or why it did not."""
        try:
            printed, said = self.process.communicate("go\n", timeout=patience)
            if self.process.returncode == 0:
                return json.loads(printed.splitlines()[-1])
            reason = (said.strip().splitlines() or ["no message"])[-1]
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            reason = f"not done after {patience:.0f} s"
        finally:
            self.folder.cleanup()
        return dict(zip(("workload", "mode"), self.job, strict=True)) | {"failed": reason}


# --8<-- [end:fresh]


def jobs(workloads: list[str]) -> Iterator[tuple[str, str]]:
    """Workload and mode; those that search come first, so that several GPUs end together."""
    order = ["max-autotune", "max-autotune-no-cudagraphs", "coordinate-descent", "reduce-overhead", "default"]
    yield from ((where, mode) for mode, (where, _) in OPTIONS.items() if where in workloads)
    yield from ((workload, mode) for mode in order for workload in reversed(workloads))


def collected(workloads: list[str]) -> list[Row]:
    """All rows, measured one at a time on each GPU. While one measures, the next two load what they need."""
    waiting: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    for job in jobs(workloads):
        waiting.put(job)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    gpus = visible.split(",")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    rows: list[Row] = []

    def work(gpu: str) -> None:
        started: deque[Fresh] = deque()
        while True:
            while len(started) < 3 and not waiting.empty():
                try:
                    started.append(Fresh(*waiting.get_nowait(), gpu, min(16, max(1, cores // len(gpus)))))
                except queue.Empty:
                    break
            if not started:
                return
            row = started.popleft().row()
            rows.append(row)
            print(f"{row['workload']} {row['mode']}: {row.get('failed') or 'measured'}", file=sys.stderr, flush=True)

    threads = [threading.Thread(target=work, args=(gpu,)) for gpu in gpus]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rows


# ---- tables ---------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    """Print what each mode is, and what it does to each workload."""
    parser = argparse.ArgumentParser("python -m snippets.compiler.modes")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child(*options.child)
        return
    print("==== modes")
    for name, values in MODES.items():
        print(f"{name:<28}{', '.join(f'{option}={value}' for option, value in values.items()) or '(nothing)'}")
    print("==== options")
    usual = torch._inductor.config.get_config_copy()
    for name, (workload, values) in OPTIONS.items():
        base = MODES["max-autotune-no-cudagraphs"] if "max_autotune" in values else {}
        changed = ", ".join(f"{option} {usual[option]} -> {values[option]}" for option in values if option not in base)
        print(f"{name:<28}{changed}{', every knob' if base else ''}; tried on {workload}")
    if not torch.cuda.is_available():
        print("==== table")
        print("A CPU has no launches to save and no CUDA graphs: reduce-overhead is the default here.")
        WORKLOADS["norms"] |= {"norms": 2, "rows": 64}  # smaller: this is to see that it runs
        print("\n".join(table([measured("norms", "default", torch.device("cpu"), torch.float32)], "norms")))
        return
    began = time.perf_counter()
    rows = collected(options.workloads)
    print("==== table")
    print("\n\n".join("\n".join(table(rows, workload)) for workload in options.workloads))
    print("==== search")
    print("\n".join(line for workload in options.workloads for line in searches(rows, workload)))
    print("==== descent")
    print("\n".join(descents(sorted(rows, key=lambda row: row["mode"], reverse=True), "norms")))
    print("==== totals")
    print("\n".join(totals(rows, "decode")))
    print("==== start")
    starts, launches = ([row[what] for row in rows if what in row] or [0.0] for what in ("start", "launch"))
    print(f"A process's first torch.compile, of x + 1, took {min(starts):.1f} to {max(starts):.1f} s.")
    print(f"An eager launch of a trivial operation took {min(launches) * 1e6:.1f} to {max(launches) * 1e6:.1f} us.")
    print(f"All of this took {time.perf_counter() - began:.0f} s.")


if __name__ == "__main__":
    main(sys.argv[1:])
