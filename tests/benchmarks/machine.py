"""Which machine is this, with which software, in what state, and is it busy?"""

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

PACKAGES = (
    *("torch", "triton", "numpy", "transformers", "torchao"),
    *("liger-kernel", "quack-kernels", "nvidia-cutlass-dsl"),
)


def describe(device: torch.device) -> dict:
    """The hardware, named by its model: {"slug", "name", "kind", "memory_bytes", "units", ...}.

    `boot` tells machines apart that were started separately.
    """
    hardware = _describe_gpu(device) if device.type == "cuda" else _describe_cpu()
    return hardware | {"processor": f"{_cpu_name()}, {os.cpu_count()} cores", "boot": _boot()}


def _describe_gpu(device: torch.device) -> dict:
    properties = torch.cuda.get_device_properties(device)
    facts = _nvidia_smi(device, "driver_version", "power.limit")
    return {
        "slug": slug(properties.name),
        "name": properties.name,
        "kind": "gpu",
        "memory_bytes": properties.total_memory,
        "units": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "driver": facts.get("driver_version"),
        "power_limit_w": _number(facts.get("power.limit")),
    }


def _describe_cpu() -> dict:
    name, cores = _cpu_name(), torch.get_num_threads()
    plural = "core" if cores == 1 else "cores"
    return {
        "slug": slug(f"{name} {cores} {plural}"),
        "name": f"{name}, {cores} {plural}",
        "kind": "cpu",
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "units": cores,
        "l2_bytes": None,
        "driver": None,
        "power_limit_w": None,
    }


class Beside:
    """What a process knows of those beside which it measures, taking turns (crew.py). Alone, nothing.

    Attributes:
        turn: waits until it is alone, stays so until what it returns ends, and adds that time to `spent`.
        lost: seconds for which it waited or was stopped.
        crowded: whether a point that does not fit into memory may do so later.
    """

    turn: Callable[[], contextlib.AbstractContextManager[None]] | None = None
    lost: Callable[[], float] = staticmethod(lambda: 0.0)
    crowded: bool = False


beside = Beside()
spent: dict[str, float] = defaultdict(float)  # seconds of this process by what it did; see `runner.Found`


def clock() -> float:
    """Seconds, without those in which this process waited for others or stood still for them."""
    return time.perf_counter() - beside.lost()


PATIENCE = 30.0  # seconds for which those who build may go on while somebody wants to be alone
GRACE = 0.3  # seconds without anybody alone, after which they build again: one point is timed in several modes
BRIEFLY = 0.08  # the same for who was alone last: nobody else is between two modes, but some may wait to be alone
own = threading.local()  # `own.gates`: when this thread was alone, by gate


@contextlib.contextmanager
def turn(device: torch.device, alone: bool, calls: bool = False, builds: bool = False) -> Iterator[None]:
    """Until it ends, no other run times on this device; and if it is to be `alone`, none builds or checks there either.

    So several runs may share a device: what takes long, compiling, they do at the same time. `calls` are timed by the
    host's clock: then nothing else goes on at any device of this machine. Who wants to be alone waits until nobody
    builds, at most `PATIENCE`: then nobody may begin to. Those who wait meanwhile are alone one after another, before
    anybody builds again: else each time would cost a wait for the slowest build.

    In a crew, who `builds` is alone where something is timed and no longer.
    """
    with _turn_of_a_crew(alone and not builds) if beside.turn else _turn_among_runs(device, alone, calls):
        began = clock()
        yield
    if alone and not beside.turn:
        spent["alone"] += clock() - began


def _turn_of_a_crew(alone: bool) -> contextlib.AbstractContextManager[None]:
    return beside.turn() if alone and beside.turn else contextlib.nullcontext()


@contextlib.contextmanager
def _turn_among_runs(device: torch.device, alone: bool, calls: bool) -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    name = torch.cuda.get_device_properties(device).uuid if device.type == "cuda" else device.type
    with contextlib.ExitStack() as stack:
        for place, exclusive in ((name, alone), ("host", calls)):
            path = Path(tempfile.gettempdir()) / f"ridgepoint-{os.getuid()}-{place}.lock"
            stack.enter_context(_alone(path) if exclusive else _with_others(path))
        yield


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Nobody else has the lock; the gate is held as long, and before the lock, so that nobody waits behind both."""
    import fcntl

    with path.open("w") as lock, path.with_suffix(".gate").open("a") as gate:
        last = time.monotonic() + PATIENCE
        while time.monotonic() < last:
            fcntl.flock(gate, fcntl.LOCK_SH)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                fcntl.flock(gate, fcntl.LOCK_UN)
                time.sleep(0.02)
        else:
            fcntl.flock(gate, fcntl.LOCK_SH)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.utime(gate.fileno())
            own.__dict__.setdefault("gates", {})[path] = os.fstat(gate.fileno()).st_mtime_ns


@contextlib.contextmanager
def _with_others(path: Path) -> Iterator[None]:
    """Others may have the lock as well, none of them alone: whoever is, or has waited too long to be, has the gate."""
    import fcntl

    with path.open("w") as lock:
        while True:
            with path.with_suffix(".gate").open("a") as gate, contextlib.suppress(BlockingIOError):
                fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
                since = time.time() - os.fstat(gate.fileno()).st_mtime
                mine = own.__dict__.get("gates", {}).get(path) == os.fstat(gate.fileno()).st_mtime_ns
                pause = BRIEFLY if mine else GRACE
                if not 0 <= since <= pause:  # a clock that was set back would make it less than nothing, for hours
                    fcntl.flock(lock, fcntl.LOCK_SH)
                    break
            time.sleep(0.02)
        yield


def state(device: torch.device) -> dict:
    """Clocks (MHz), temperature (degrees Celsius) and power (W) now; empty on a CPU."""
    if device.type != "cuda":
        return {}
    names = {
        "sm_clock_mhz": "clocks.sm",
        "memory_clock_mhz": "clocks.mem",
        "temperature_c": "temperature.gpu",
        "power_w": "power.draw",
    }
    facts = _nvidia_smi(device, *names.values())
    return {ours: _number(facts.get(theirs)) for ours, theirs in names.items()}


class Watch:
    """What else a machine does from here on, as the kernel counts it; nothing where it does not (macOS, Windows)."""

    MOST = 0.1  # of the processor's time; a share of a tenth moves a median that the host rules by as much

    def __init__(self) -> None:
        self.began, self.before = time.perf_counter(), _counters()

    def busy(self) -> str:
        """Why a time that was taken meanwhile is not to be trusted; empty if none is known."""
        wall = time.perf_counter() - self.began
        spent = {name: after - self.before[name] for name, after in _counters().items() if name in self.before}
        total = max(spent.get("total", 0.0), wall)
        others = spent.get("used", 0.0) - spent.get("own", 0.0)
        shares = {
            "of the processor's time went to other machines": spent.get("stolen", 0.0) / total,
            "of the processor's time went to other programs": others / total,
            "of the time this program was held back": spent.get("throttled", 0.0) / max(wall, 1e-9),
        }
        return "; ".join(f"{share:.0%} {what}" for what, share in shares.items() if share > self.MOST)


def _counters() -> dict[str, float]:
    """Seconds since some time, of all processors together: in all, in use, stolen; ours; and held back by a quota."""
    found: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError):
        ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        user, nice, system, idle, waiting, hard, soft, stolen = (tick / os.sysconf("SC_CLK_TCK") for tick in ticks)
        used = user + nice + system + hard + soft
        times = os.times()
        found |= {"total": used + idle + waiting + stolen, "used": used, "stolen": stolen}
        found["own"] = times.user + times.system + times.children_user + times.children_system
    with contextlib.suppress(OSError, AttributeError):
        quota = re.search(r"throttled_usec (\d+)", Path("/sys/fs/cgroup/cpu.stat").read_text())
        found["throttled"] = int(quota.group(1)) * 1e-6  # type: ignore[union-attr]
    return found


def _boot() -> str | None:
    """A short hash that another start of the machine does not have; None where the kernel does not tell."""
    with contextlib.suppress(OSError):
        return hashlib.sha256(Path("/proc/sys/kernel/random/boot_id").read_bytes()).hexdigest()[:8]
    return None


def software() -> dict:
    """Versions of everything that takes part; packages that are not installed are left out."""
    versions = {"python": platform.python_version(), "os": f"{platform.system()} {platform.machine()}"}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    versions["torch"] = torch.__version__
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
        versions["cudnn"] = str(torch.backends.cudnn.version())
    return versions


def slug(name: str) -> str:
    """A name for file names and addresses: "NVIDIA H200" becomes "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _nvidia_smi(device: torch.device, *queries: str) -> dict[str, str]:
    """What the driver says of a GPU; empty where nvidia-smi is missing or does not know it (a slice of a GPU)."""
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    text = _output_of("nvidia-smi", f"--id={uuid}", f"--query-gpu={','.join(queries)}", "--format=csv,noheader,nounits")
    return dict(zip(queries, (value.strip() for value in text.strip().split(",")), strict=False)) if text else {}


def _output_of(*command: str) -> str:
    """What a command prints, in English; empty where it is missing or fails."""
    english = os.environ | {"LC_ALL": "C"}
    try:
        return subprocess.run(command, env=english, capture_output=True, text=True, timeout=300, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _number(text: str | None) -> float | None:
    try:
        return float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # "[N/A]", or not asked
        return None


def _cpu_name() -> str:
    """The processor's model as x86 Linux, ARM Linux or macOS tells it."""
    for command in (("cat", "/proc/cpuinfo"), ("lscpu",), ("sysctl", "machdep.cpu.brand_string")):
        found = re.search(r"(?im)^(?:model name|machdep\.cpu\.brand_string)\s*:\s*(.+)$", _output_of(*command))
        if found:
            return re.sub(r"\s+", " ", re.sub(r"\((R|TM)\)|CPU|@.*$", "", found.group(1))).strip()
    return platform.machine()
