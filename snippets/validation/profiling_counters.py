"""Nsight Compute on one kernel: five counters, and what they are in words. It needs a GPU and `ncu`.

Run `python -m snippets.validation.profiling_counters`.
"""

import csv
import glob
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

import torch

from kernels.rms_norm import rms_norm

ROWS, COLUMNS = 32768, 4096

# --8<-- [start:counters]
COUNTERS = {
    "dram__bytes_read.sum": "bytes that came from memory",
    "dram__bytes_write.sum": "bytes that went to memory",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "of what the memory can move",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "of the warps that fit were resident (occupancy)",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "of the cycles issued an instruction",
}


def command(ncu: str, script: Sequence[str]) -> list[str]:
    """Nsight Compute around a script: counts at the kernel's second launch, and prints a table for programs.

    Without --clock-control none it fixes the clocks at their base, and every time is longer than in a real run.
    """
    metrics = ",".join(["gpu__time_duration.sum", *COUNTERS])
    chosen = ["--kernel-name", "regex:_forward", "--launch-skip", "1", "--launch-count", "1"]
    return [ncu, "--csv", "--print-units", "base", "--clock-control", "none", "--metrics", metrics, *chosen, *script]


# --8<-- [end:counters]


def found() -> str | None:
    """Nsight Compute on the path, or where its installers put it."""
    places = [*glob.glob("/usr/local/cuda*/bin/ncu"), *glob.glob("/opt/nvidia/nsight-compute/*/ncu")]
    return shutil.which("ncu") or (sorted(places)[-1] if places else None)


def values(printed: str) -> dict[str, float]:
    """The counters in what `ncu --csv` prints, by name. Lines before the table are its own messages.

    Raises:
        ValueError: there is no table: with what ncu says instead.
    """
    lines = printed.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise ValueError(" ".join(line for line in lines if line.startswith("==ERROR==")) or printed.strip()[-300:])
    rows = csv.DictReader(lines[start:])
    return {row["Metric Name"]: float(row["Metric Value"].replace(",", "")) for row in rows if row["Metric Value"]}


def workload() -> None:
    """Two launches of the kernel."""
    x = torch.randn(ROWS, COLUMNS, device="cuda", dtype=torch.bfloat16)
    weight = torch.ones(COLUMNS, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        for _ in range(2):
            rms_norm(x, weight)
    torch.cuda.synchronize()


def lines(counted: Mapping[str, float]) -> list[str]:
    """The counters as text, beside what the kernel has to move."""
    least = 2 * ROWS * COLUMNS
    shown = [f"{counted['gpu__time_duration.sum'] / 1e3:>12,.1f} us"]
    for name, meaning in COUNTERS.items():
        value = counted.get(name, float("nan"))
        amount = f"{value / 1e6:>12,.1f} MB" if name.endswith(".sum") else f"{value:>12.1f} % "
        shown.append(f"{amount}  {meaning}\n{'':>17}{name}")
    return [*shown, f"{least / 1e6:>12,.1f} MB  to read at least, and as many to write, by the shape"]


def main(arguments: list[str]) -> int:
    """Count, if there is what it takes; returns the exit status."""
    if arguments == ["workload"]:
        workload()
        return 0
    if not torch.cuda.is_available():
        print("no CUDA GPU; nothing is counted")
        return 0
    print("==== counters")
    ncu = found()
    if ncu is None:
        print("no ncu here: install Nsight Compute; nothing is counted")
        return 0
    script = [sys.executable, "-m", "snippets.validation.profiling_counters", "workload"]
    done = subprocess.run(command(ncu, script), capture_output=True, text=True, timeout=300)
    try:
        print("\n".join(lines(values(done.stdout))))
    except ValueError as error:
        print(f"{ncu} counted nothing: {error or done.stderr.strip()[-300:]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
