"""What the GPU counts while a program's kernels run, asked of NVIDIA's Nsight Compute."""

import csv
import io
import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# --8<-- [start:counters]
COUNTERS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",  # memory's share of its peak
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",  # the L2's share of its peak
    "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",  # the L1's
    "sm__warps_active.avg.pct_of_peak_sustained_active",  # achieved occupancy
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",  # 32 bytes each
    "lts__t_sector_hit_rate.pct",  # of the L2
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",  # waits for memory
    "launch__registers_per_thread",
)

OPTIONS = (
    "--csv", "--page", "raw", "--print-units", "base",
    "--clock-control", "none",  # else ncu holds the clock at its base, and times are not those of a usual run
    "--profile-from-start", "off",  # only between start and stop
)  # fmt: skip
# --8<-- [end:counters]
UNITS = {
    "nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3,
    "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9,
}  # fmt: skip


@dataclass(frozen=True)
class Counted:
    """What the GPU counted while a kernel ran: seconds, bytes, per cent and plain numbers."""

    kernel: str
    counters: dict[str, float]

    @property
    def traffic(self) -> float:
        """Bytes from memory and to it."""
        return self.counters["dram__bytes_read.sum"] + self.counters["dram__bytes_write.sum"]


# --8<-- [start:ask]
def ask(command: Sequence[str], counters: Sequence[str] = COUNTERS) -> list[Counted]:
    """What ncu counts of each kernel that the command launches.

    Raises:
        RuntimeError: with the reason why nothing was counted.
    """
    ncu = shutil.which("ncu") or shutil.which("/usr/local/cuda/bin/ncu")
    if ncu is None:
        raise RuntimeError("ncu is not on the PATH: it is part of the CUDA toolkit, and of Nsight Compute")
    asked = [ncu, *OPTIONS, "--metrics", ",".join(counters), *command]
    with tempfile.TemporaryFile("w+") as printed:  # no pipe, which the program below ncu could keep open
        try:
            subprocess.run(asked, cwd=ROOT, stdout=printed, stderr=subprocess.STDOUT, timeout=90, check=False)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError("ncu was not done after 90 s") from error
        printed.seek(0)
        said = printed.read()
    if "ERR_NVGPUCTRPERM" in said:
        raise RuntimeError("ERR_NVGPUCTRPERM: on this machine only the administrator may read the GPU's counters")
    if unknown := re.search(r"Failed to find metric (?:regex:\^)?(\w+)", said):  # another GPU, or another ncu
        known = [counter for counter in counters if counter.partition(".")[0] != unknown[1]]
        if 0 < len(known) < len(counters):
            return ask(command, known)
    if not (table := re.search(r'^"ID",.*', said, re.MULTILINE | re.DOTALL)):
        errors = [line for line in said.splitlines() if line.startswith("==ERROR==")] or said.strip().splitlines()
        raise RuntimeError(f"ncu counted nothing. It said: {errors[-1] if errors else 'nothing'}")
    return list(counted(table[0], counters))


def counted(table: str, counters: Sequence[str]) -> Iterator[Counted]:
    """The rows of ncu's raw page: a head, the units, then a kernel a row."""
    units, *rows = csv.DictReader(io.StringIO(table))
    for row in rows:
        if (row["ID"] or "").isdigit():  # ncu's own lines may follow
            numbers = {counter: number(row.get(counter), units.get(counter)) for counter in counters}
            yield Counted(row["Kernel Name"], dict.fromkeys(COUNTERS, math.nan) | numbers)


def number(text: str | None, unit: str | None) -> float:
    """In seconds or bytes; thousands have commas. nan where ncu has no number."""
    try:
        return float((text or "").replace(",", "")) * UNITS.get(unit or "", 1.0)
    except ValueError:
        return math.nan


# --8<-- [end:ask]
