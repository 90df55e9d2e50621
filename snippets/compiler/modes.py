"""Which mode of torch.compile pays, and when? Time, memory and compile seconds of each, on the same workloads.

    python -m snippets.compiler.modes [--workloads mlp decode ...]

On a GPU each workload and mode gets a process of its own with an empty cache, so that its seconds are those of a
machine that has never compiled anything. Several GPUs share the work. A CPU shows one mode on one workload.
"""

import argparse
import contextlib
import gc
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters

from snippets.validation.timing import measure, synchronize, yardstick

Call = Callable[[], Any]
Row = dict[str, Any]  # what was measured of one workload in one mode

# --8<-- [start:modes]
MODES: dict[str, dict[str, Any]] = {
    name: torch._inductor.list_mode_options(name)
    for name in ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
} | {"coordinate-descent": {"coordinate_descent_tuning": True}}

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {  # each at the workload that gives it something to do
    "combo-kernels": ("norms", {"combo_kernels": True}),
    "no-epilogue-fusion": ("mlp", MODES["max-autotune-no-cudagraphs"] | {"epilogue_fusion": False}),
    "freezing": ("convolution", {"freezing": True}),
    "cpp-wrapper": ("decode", {"cpp_wrapper": True}),
}


def compiled(function: Callable, mode: str) -> Callable:
    """A mode is a set of options, and nothing else."""
    options = MODES[mode] if mode in MODES else OPTIONS[mode][1]
    return torch.compile(function, fullgraph=True, dynamic=False, options=dict(options))


# --8<-- [end:modes]

# ---- workloads ------------------------------------------------------------------------------------------------------


# --8<-- [start:workloads]
class Block(nn.Module):
    """A pre-norm transformer block with causal attention: x (batch, tokens, width) to the same shape.

    With `cached` tokens it is a step of decoding: x has one token, whose key and value are written into the cache at
    `position`, and which attends to all up to there.
    """

    def __init__(self, width: int, cached: int = 0, batch: int = 0):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        if cached:
            for name in ("keys", "values"):
                self.register_buffer(name, torch.randn(batch, width // HEAD, cached, HEAD))

    def forward(self, x: Tensor, position: Tensor | None = None) -> Tensor:
        y = self.first(x)
        q, k, v = (layer(y).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if position is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            keys, values = self.keys.index_copy_(2, position, k), self.values.index_copy_(2, position, v)
            seen = (torch.arange(keys.shape[2], device=x.device) <= position)[None]
            mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Decoder(nn.Module):
    """One step of decoding through several blocks: x (batch, 1, width)."""

    def __init__(self, blocks: int, batch: int, cached: int, width: int):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, cached, batch) for _ in range(blocks))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, position)
        return x


class Norms(nn.Module):
    """Rows of several tensors, each normed, added and normed again; no tensor needs another."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(F.rms_norm(x + F.layer_norm(x, x.shape[-1:]), x.shape[-1:]) for x in tensors)


# --8<-- [end:workloads]
HEAD = 64  # width of a head

WORKLOADS: dict[str, dict[str, int]] = {
    "mlp": {"mlp": 4, "rows": 256, "width": 512},
    "block": {"block": 1, "batch": 4, "tokens": 128, "width": 512},
    "wide-block": {"block": 1, "batch": 8, "tokens": 1024, "width": 2048},
    "decode": {"decode": 4, "batch": 8, "cached": 1024, "width": 1024},
    "norms": {"norms": 8, "rows": 1024, "columns": 4096},
    "convolution": {"convolution": 4, "batch": 32, "channels": 128, "side": 28},
}


def make(shape: Mapping[str, int], device: torch.device, dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A workload for inference, and its inputs. The first size says which by its name, and how many there are."""
    kind, (number, *sizes) = next(iter(shape)), shape.values()
    draw = partial(torch.randn, device=device)
    inputs: tuple[Tensor, ...]
    module: nn.Module
    if kind == "mlp":
        rows, width = sizes
        module = nn.Sequential(*(layer for _ in range(number) for layer in (nn.Linear(width, width), nn.GELU())))
        inputs = (draw(rows, width),)
    elif kind == "block":
        batch, tokens, width = sizes
        module = nn.Sequential(*(Block(width) for _ in range(number)))
        inputs = (draw(batch, tokens, width),)
    elif kind == "decode":
        batch, cached, width = sizes
        module = Decoder(number, *sizes)
        inputs = draw(batch, 1, width), torch.tensor([3 * cached // 4], device=device)
    elif kind == "norms":
        module, inputs = Norms(), tuple(draw(*sizes) for _ in range(number))
    else:
        batch, channels, side = sizes
        layers = (convolution(channels) for _ in range(number))
        module, inputs = nn.Sequential(*layers), (draw(batch, channels, side, side),)
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data *= 2  # as drawn they make each layer's result smaller than the one before
    module = module.to(device, dtype).eval().requires_grad_(False)
    return module, tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)


def convolution(channels: int) -> nn.Module:
    """Convolution, norm and ReLU, as in an image model."""
    norm = nn.BatchNorm2d(channels)
    norm.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
    norm.running_var.uniform_(0.1, 0.3)  # type: ignore[union-attr]
    return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), norm, nn.ReLU())


# ---- one workload in one mode ---------------------------------------------------------------------------------------


# --8<-- [start:measured]
@torch.no_grad()
def measured(workload: str, mode: str, device: torch.device, dtype: torch.dtype) -> Row:
    """Compile a workload in a mode, and time it beside eager; all seconds, all bytes."""
    torch.manual_seed(0)
    module, inputs = make(WORKLOADS[workload], device, dtype)
    eager = partial(module, *inputs)
    exact = eager()
    synchronize(device)
    base = reserved(device)  # weights, inputs, the libraries' workspace
    used = {"eager": memory(eager, device, base)}

    fast = partial(compiled(module, mode), *inputs)
    tried: list[Row] = []
    with search_heard(tried):
        first = seconds(fast, device)
    recorded = sum(seconds(fast, device) for _ in range(2))  # a CUDA graph: the second call records, the third replays
    close(fast(), exact)
    timings = measure({"eager": eager, mode: fast}, device, "calls", rounds=7)
    used[mode] = memory(fast, device, base)
    return {
        "workload": workload,
        "mode": mode,
        "compile": first + recorded,
        "time": {name: timing.p50 for name, timing in timings.items()},
        "peak": {name: peak for name, (peak, _) in used.items()},
        "kept": {name: kept for name, (_, kept) in used.items()},
        "tried": tried,
        "settings": launch_settings(),
        "steps": counters["inductor"]["coordesc_tuning_bench"],  # launches that coordinate descent timed
    }


def seconds(call: Call, device: torch.device) -> float:
    """Of one call, by the host's clock."""
    began = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - began


def reserved(device: torch.device) -> int:
    """Bytes that PyTorch holds on the GPU and cannot give back now."""
    gc.collect()
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)


def memory(call: Call, device: torch.device, base: int) -> tuple[int | None, int | None]:
    """Bytes that PyTorch holds at a call's peak, and still holds when its result is gone, beyond `base`.

    What a CUDA graph works in is not given back between calls, so it counts as kept.
    """
    if device.type != "cuda":
        return None, None
    reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_reserved(device)
    return peak - base, reserved(device) - base


# --8<-- [end:measured]


def close(result: object, exact: object) -> None:
    """Both the same, up to the rounding of some layers; tests/benchmarks/compiler/modes.py looks closer."""
    pairs = [(result, exact)] if isinstance(result, Tensor) else zip(result, exact, strict=True)  # type: ignore[call-overload]
    for one, other in pairs:
        error = (one.float() - other.float()).norm() / other.float().norm()
        if not error < 0.05:
            raise RuntimeError(f"the compiled result is off by {error:.2%}")


@contextlib.contextmanager
def search_heard(found: list[Row]) -> Iterator[None]:
    """While it lasts, notes what max-autotune finds for each product: how many choices, and the best one's time."""
    from torch._inductor.select_algorithm import add_feedback_saver, clear_feedback_savers

    def hear(timings: Mapping[Any, float], name: str, nodes: list, *_: object) -> None:
        if not timings:
            return
        best = min(timings, key=timings.__getitem__)
        library = [choice for choice in timings if is_library(choice)]
        sizes = [[int(size) for size in node.get_size()] for node in nodes]
        found.append(
            {
                "product": name,
                "sizes": [size for size in sizes if len(size) > 1][-2:],  # a bias has one
                "choices": len(timings),
                "library": min((timings[choice] for choice in library), default=float("inf")) * 1e-3,
                "best": timings[best] * 1e-3,
                "winner": "library" if best in library else "Triton",
            }
        )

    add_feedback_saver(hear)
    try:
        yield
    finally:
        clear_feedback_savers()


def launch_settings() -> list[str]:
    """How each Triton kernel that Inductor has generated in this process is launched: block sizes, warps, stages."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    kernels = [each for each in gc.get_objects() if issubclass(type(each), CachingAutotuner)]  # asks no object
    chosen = [launcher.config for kernel in kernels for launcher in kernel.launchers]
    return sorted({f"{settings.kwargs} warps {settings.num_warps} stages {settings.num_stages}" for settings in chosen})


def is_library(choice: object) -> bool:
    """Whether a choice of Inductor's is an operation of PyTorch's rather than a template of its own."""
    return type(choice).__name__ == "ExternKernelCaller"


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


# --8<-- [start:break-even]
def break_even(paid: float, before: float, after: float) -> float:
    """Calls after which `paid` seconds are earned back by calls that take `after` instead of `before`.

    Two runs differ by a per cent or two, so less than that is no gain.
    """
    return paid / (before - after) if after < 0.98 * before else float("inf")


# --8<-- [end:break-even]


def about(calls: float) -> str:
    """Two digits: the third is another one in the next run."""
    return {0.0: "at once", float("inf"): "never"}.get(calls) or f"{float(f'{calls:.1e}'):,.0f}"


def table(rows: list[Row], workload: str) -> Iterator[str]:
    """A line for eager and for each mode of a workload."""
    mine = {row["mode"]: row for row in rows if row["workload"] == workload}
    order = [name for name in (*MODES, *OPTIONS) if name in mine]
    if not any("time" in row for row in mine.values()):
        yield f"{workload}: {next((row['failed'] for row in mine.values()), 'not measured')}"
        return
    default = mine.get("default", {})
    some = next(row for row in (default, *mine.values()) if "time" in row)
    head = f"{'a call':>13}{'peak':>12}{'kept':>12}{'compiling':>12}{'pays over eager':>18}{'over default':>15}"
    yield f"{workload:<28}{head}"
    yield f"  {'eager':<26}{columns(some, 'eager')}"
    for name in order:
        row = mine[name]
        if "failed" in row:
            yield f"  {name:<26}  {row['failed'][:80]}"
            continue
        now, eager = row["time"][name], row["time"]["eager"]
        pays = break_even(row["compile"], eager, now)
        line = f"  {name:<26}{columns(row, name)}{row['compile']:>10.1f} s{about(pays):>18}"
        if name != "default" and "time" in default:
            # each mode was timed beside eager in its own process: the default's time is carried over by that
            usual = default["time"]["default"] * eager / default["time"]["eager"]
            line += f"{about(break_even(max(row['compile'] - default['compile'], 0), usual, now)):>15}"
        yield line


def columns(row: Row, name: str) -> str:
    """Time and memory, as the table has them."""
    held = [row[what][name] for what in ("peak", "kept")]
    memory = ["–" if size is None else f"{size / 2**20:,.0f} MiB" for size in held]
    return f"{row['time'][name] * 1e6:>10.1f} us{memory[0]:>12}{memory[1]:>12}"


def searches(rows: list[Row], workload: str) -> Iterator[str]:
    """A line for each product that max-autotune searched."""
    for row in rows:
        if row["workload"] == workload and row["mode"] == "max-autotune-no-cudagraphs":
            for one in row.get("tried", ()):
                sizes = " × ".join("x".join(map(str, size)) for size in one["sizes"])
                yield (
                    f"{workload:<12}{one['product']:<12}{sizes:<28}{one['choices']:>4} tried  "
                    f"library {one['library'] * 1e6:7.1f} us  best {one['best'] * 1e6:7.1f} us  {one['winner']}"
                )


def descents(rows: list[Row], workload: str) -> Iterator[str]:
    """How a workload's kernels are launched, as Inductor guesses and as coordinate descent finds."""
    for row in rows:
        if row["workload"] == workload and row["mode"] in ("default", "coordinate-descent") and "settings" in row:
            yield f"{row['mode']}: {row['steps']} launches tried one step away"
            yield from (f"    {settings}" for settings in row["settings"])


def totals(rows: list[Row], workload: str) -> Iterator[str]:
    """Compiling and so many calls, in seconds, for each mode; and who is done first."""
    mine = [row for row in rows if row["workload"] == workload and "time" in row and row["mode"] in MODES]
    if not mine:
        return
    eager = next((row for row in mine if row["mode"] == "default"), mine[0])["time"]["eager"]
    paid, each = {"eager": 0.0}, {"eager": eager}
    for row in sorted(mine, key=lambda row: list(MODES).index(row["mode"])):
        paid[row["mode"]] = row["compile"]
        each[row["mode"]] = row["time"][row["mode"]] * eager / row["time"]["eager"]
    numbers = (1_000, 100_000, 10_000_000)
    spent = {calls: {name: paid[name] + calls * each[name] for name in paid} for calls in numbers}
    yield f"{'calls':<26}" + "".join(f"{calls:>28,}" for calls in numbers)
    for name in paid:
        yield f"{name:<26}" + "".join(f"{spent[calls][name]:>26,.1f} s" for calls in numbers)
    yield f"{'done first':<26}" + "".join(f"{min(each, key=each.get):>28}" for each in spent.values())  # type: ignore[arg-type]


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
