"""Why is this step slow? Reads a trace of torch.profiler and says what the GPU did with each moment. One file to copy.

    python diagnosis.py trace.json [--memory 4200] [--bfloat16 700] [--float32 50]      ceilings in GB/s and TFLOP/s

or, around a step of your own:

    print(diagnose(read(record(step, "trace.json"))))

Reading a trace needs the standard library only, and no GPU; `record` needs torch. The trace has to have shapes
(`record_shapes=True`) if kernels are to be held against ceilings.
"""

import argparse
import gzip
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Spans = list[tuple[float, float]]  # of seconds: sorted, and none touches another

CAUSES = {  # what a moment of the step can be spent on, in the order in which it is asked; and what to do next
    "matrix": "a smaller dtype (bf16, TF32), sizes that tensor cores like, fewer products; then a share of the ceiling",
    "memory": "fuse what stands side by side (torch.compile); a smaller dtype; then each kernel's share of the ceiling",
    "network": "overlap it with the backward; larger and fewer messages",
    "copying": "pin_memory=True and non_blocking=True; send fewer bytes (uint8); copy ahead, on another stream",
    "starting": "larger kernels: fuse, or a larger batch; the host is no longer in the way",
    "compiling": "TORCH_LOGS=recompiles names the guard; mark_dynamic what changes; warm up before you serve or time",
    "loading": "num_workers=, persistent_workers=True; do less for each sample; decode on the GPU",
    "waiting": 'torch.cuda.set_sync_debug_mode("warn") names the line (.item(), .cpu(), a branch on a tensor)',
    "launching": 'torch.compile(mode="reduce-overhead") or a CUDA graph; a larger batch; fused optimizers',
}
BUSY = ("matrix", "memory", "network")
MOST_IDLE = 0.2  # of a step without a kernel: less than that, and the kernels are what to look at

MEANING = {
    "matrix": "matrix products and attention run",
    "memory": "kernels that only move data and do little with it run",
    "network": "kernels that talk to other GPUs run",
    "copying": "nothing runs but a copy between host and GPU",
    "starting": "the GPU is idle between two kernels of one CUDA graph",
    "compiling": "the GPU is idle while the host compiles",
    "loading": "the GPU is idle while the host waits for the DataLoader",
    "waiting": "the GPU is idle, and would not be if the host had not waited for it earlier",
    "launching": "the GPU is idle while the host prepares the next launch",
}


# ---- spans of time --------------------------------------------------------------------------------------


def union(spans: Iterable[tuple[float, float]]) -> Spans:
    """The same moments, each once."""
    merged: Spans = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def without(spans: Spans, others: Spans) -> Spans:
    """The moments of the first that are in none of the second."""
    left: Spans = []
    for start, end in spans:
        for begin, finish in others:
            if finish <= start:
                continue
            if begin >= end:
                break
            if begin > start:
                left.append((start, begin))
            start = finish
        if start < end:
            left.append((start, end))
    return left


def seconds(spans: Spans) -> float:
    return sum(end - start for start, end in spans)


# ---- the trace ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """What took a while, on the host or on the GPU; times in seconds."""

    name: str
    category: str
    start: float
    end: float
    args: Mapping = field(default_factory=dict)

    @property
    def span(self) -> tuple[float, float]:
        return self.start, self.end


ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
ON_HOST = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")
LAUNCHES = re.compile(r"(cuda|cu|hip)\w*Launch")
COPIES = re.compile(r"(cuda|hip)Memcpy")  # one from or to memory that is not pinned holds the host until it is done
WAITS = re.compile(r"(cuda|hip)\w*Synchronize")


def read(path: str | Path) -> list[Event]:
    """The events of a Chrome trace as torch.profiler writes it, packed with gzip or not.

    Raises:
        ValueError: the file is no such trace.
    """
    raw = Path(path).read_bytes()
    try:
        found = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)["traceEvents"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: expected a Chrome trace with traceEvents, as export_chrome_trace writes it"
        ) from error
    return [
        Event(
            event["name"], event["cat"], event["ts"] * 1e-6, (event["ts"] + event["dur"]) * 1e-6, event.get("args", {})
        )
        for event in found
        if event.get("ph") == "X" and event.get("cat") in ON_GPU + ON_HOST
    ]


# --8<-- [start:record]
def record(step: Callable[[], object], path: str | Path, steps: int = 5, warm_up: int = 2) -> Path:
    """Profile some calls of a step, after some that only warm up, and write the trace."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    written = Path(path)
    with profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=warm_up, active=steps, repeat=1),
        record_shapes=True,
        acc_events=True,
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(written)),
    ) as profiler:
        for number in range(warm_up + steps):
            step()
            if on_gpu and number in (warm_up - 1, warm_up + steps - 1):
                torch.cuda.synchronize()  # what is recorded begins and ends with an idle GPU
            profiler.step()
    return written


# --8<-- [end:record]


# ---- what a kernel is -----------------------------------------------------------------------------------

PRODUCTS = re.compile(r"aten::(mm|bmm|addmm|baddbmm|_scaled_mm|\w*conv\w*|\w*attention\w*)$")
PRODUCT_KERNELS = re.compile(
    r"(?<!fb)gemm|cutlass|scudnn|nvjet|xmma|cublas|wgrad|dgrad|flash|fmha|triton_tem|conv2d|implicit_con", re.I
)
ELEMENTWISE = re.compile(
    r"aten::(add|sub|mul|div|neg|relu|gelu|silu|sigmoid|tanh|exp|log|sqrt|rsqrt|pow|abs|clamp|clamp_min|where|copy|cos|sin)_?$"
)
WIDTH = {"double": 8, "float": 4, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "long": 8, "int": 4, "bool": 1}
DTYPE = {"double": "float64", "float": "float32", "c10::BFloat16": "bfloat16", "c10::Half": "float16"}


def kind_of(kernel: Event, op: Event | None) -> str:
    """ "matrix", "memory", "network" or "copying"."""
    if kernel.category != "kernel":
        return "memory" if "DtoD" in kernel.name or kernel.category == "gpu_memset" else "copying"
    if "nccl" in kernel.name.lower():
        return "network"
    is_product = (op and PRODUCTS.match(op.name)) or PRODUCT_KERNELS.search(kernel.name)
    return "matrix" if is_product else "memory"


# --8<-- [start:work]
def tensors(op: Event) -> list[tuple[list[int], str]]:
    """Shape and type of each tensor that an operation was given."""
    given = zip(op.args.get("Input Dims", []), op.args.get("Input type", []), strict=False)
    return [(shape, kind) for shape, kind in given if kind in WIDTH and all(isinstance(size, int) for size in shape)]


def work_of(op: Event) -> tuple[float, float, str]:
    """FLOP, bytes moved at least, and dtype, as far as shapes tell; nan where they don't."""
    inputs = [(shape, kind) for shape, kind in tensors(op) if shape]
    if not inputs:
        return math.nan, math.nan, ""
    dtype = DTYPE.get(inputs[0][1], inputs[0][1])
    read = sum(math.prod(shape) * WIDTH[kind] for shape, kind in inputs)
    if re.match(r"aten::(mm|bmm|addmm|baddbmm)$", op.name) and len(inputs) >= 2:
        (a, kind), (b, _) = inputs[-2:]
        return 2.0 * math.prod(a) * b[-1], read + math.prod(a[:-1]) * b[-1] * WIDTH[kind], dtype
    if op.name.startswith("triton_"):  # of the compiler: all that it reads and writes is handed in
        return 0.0, read, dtype
    if op.name == "aten::copy_":  # what is written is handed in, too
        return 0.0, read, dtype
    if ELEMENTWISE.match(op.name):
        return 0.0, read + max(math.prod(shape) for shape, _ in inputs) * WIDTH[inputs[0][1]], dtype
    return math.nan, math.nan, dtype


# --8<-- [end:work]


@dataclass(frozen=True)
class Work:
    """All kernels of one name for one operation.

    Attributes:
        seconds, calls: for the whole trace.
        share: of the step.
        ceiling: the least time that the work could take, over the time that it took; nan if not known.
    """

    name: str
    op: str
    kind: str
    dtype: str
    calls: int
    seconds: float
    share: float
    ceiling: float


# --8<-- [start:ceilings]
@dataclass(frozen=True)
class Ceilings:
    """What the machine can do at most: bytes per second, and FLOP per second by dtype (see roofline.py)."""

    memory: float = math.nan
    matrix: Mapping[str, float] = field(default_factory=dict)

    def least(self, flops: float, moved: float, dtype: str) -> float:
        """The least seconds for the work; nan where a ceiling or the work is not known."""
        if math.isnan(flops) or math.isnan(self.memory):
            return math.nan
        return max(flops / self.matrix.get(dtype, math.nan) if flops else 0.0, moved / self.memory)


# --8<-- [end:ceilings]


# ---- the diagnosis --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Diagnosis:
    """Where the time of a step went.

    Attributes:
        step: seconds; steps: how many are in the trace.
        shares: of the step, by cause; they add up to 1.
        kernels: on average in a step; typical: their median seconds.
        gaps: on average in a step; longest: its seconds.
        works: the kernels, the longest first.
        on_gpu: whether the trace has a GPU; if not, operations of the CPU stand in for kernels.
    """

    step: float
    steps: int
    shares: dict[str, float]
    kernels: float
    typical: float
    gaps: float
    longest: float
    works: list[Work]
    on_gpu: bool

    @property
    def idle(self) -> float:
        """The share of the step in which no kernel runs."""
        return sum(share for cause, share in self.shares.items() if cause not in BUSY)

    # --8<-- [start:cause]
    @property
    def cause(self) -> str:
        """What to mend first. Time without a kernel is lost whole, time in one only in part: it is asked first."""
        asked = [cause for cause in CAUSES if (cause in BUSY) == (self.idle < MOST_IDLE)]
        return max(asked, key=lambda cause: self.shares[cause])

    # --8<-- [end:cause]

    def __str__(self) -> str:
        return "\n".join(lines(self))


# --8<-- [start:shares]
def shares_of(
    window: tuple[float, float], by_kind: Mapping[str, Spans], graphs: Spans, host: Sequence[Event]
) -> dict[str, float]:
    """Each moment of the window is spent on one thing: the first that applies, in the order of CAUSES."""
    left = [window]
    spent: dict[str, float] = {}

    def take(cause: str, spans: Spans) -> None:
        nonlocal left
        rest = without(left, spans)
        spent[cause] = seconds(left) - seconds(rest)
        left = rest

    compiling = union(event.span for event in host if event.name.endswith("(dynamo_timed)"))
    for kind in BUSY:
        take(kind, by_kind.get(kind, []))
    take("copying", union([*by_kind.get("copying", []), *(event.span for event in host if COPIES.match(event.name))]))
    take("starting", graphs)
    take("compiling", compiling)
    take("loading", union(event.span for event in host if event.name.startswith("enumerate(DataLoader)")))
    idle = seconds(left)
    spent["waiting"] = min(idle, seconds(blocked(host)))
    spent["launching"] = idle - spent["waiting"]
    whole = window[1] - window[0]
    return {cause: spent[cause] / whole for cause in CAUSES}


# --8<-- [end:shares]


# --8<-- [start:blocked]
def blocked(host: Sequence[Event]) -> Spans:
    """When the host waited for the GPU although there was more to launch.

    In that time it could have run ahead. So without the waits the GPU would be idle less by this much at most.
    """
    launches = [event.start for event in host if LAUNCHES.match(event.name)]
    last = max(launches, default=-math.inf)
    waits = (event for event in host if WAITS.match(event.name) or COPIES.match(event.name))
    return union(event.span for event in waits if event.end < last)


# --8<-- [end:blocked]


def diagnose(events: Sequence[Event], ceilings: Ceilings | None = None) -> Diagnosis:
    """Where the time went.

    Raises:
        ValueError: the trace has no operation in it.
    """
    annotated = [event for event in events if event.name.startswith("ProfilerStep#") and event.category in ON_HOST]
    start = min((event.start for event in annotated), default=-math.inf)
    host = [event for event in events if event.category in ON_HOST and event.start >= start and event not in annotated]
    kernels = [event for event in events if event.category in ON_GPU and event.end > start]
    on_gpu = bool(kernels)
    if not on_gpu:  # the processor's operations stand in, apart from those that the compiler tries
        compiling = union(event.span for event in host if event.name.endswith("(dynamo_timed)"))
        ran = re.compile("aten::|Torch-Compiled Region")
        kernels = [event for event in host if ran.match(event.name) and without([event.span], compiling)]
    if not kernels:
        raise ValueError("the trace has no operations: was anything called between the profiler's steps?")
    linked = list(zip(kernels, operations(kernels, host) if on_gpu else kernels, strict=True))
    began = start if annotated else min(event.start for event in kernels + host)
    window = began, max(event.end for event in annotated + kernels)
    by_kind: dict[str, Spans] = {}
    for kernel, op in linked:
        by_kind.setdefault(kind_of(kernel, op) if on_gpu else cpu_kind(kernel), []).append(kernel.span)
    steps = max(1, len(annotated))
    gaps = without([window], union(kernel.span for kernel in kernels))
    return Diagnosis(
        step=(window[1] - window[0]) / steps,
        steps=steps,
        shares=shares_of(window, {kind: union(spans) for kind, spans in by_kind.items()}, replays(kernels), host),
        kernels=len(kernels) / steps,
        typical=statistics.median(kernel.end - kernel.start for kernel in kernels),
        gaps=len(gaps) / steps,
        longest=max((end - start for start, end in gaps), default=0.0),
        works=works(linked, window[1] - window[0], ceilings or Ceilings()) if on_gpu else [],
        on_gpu=on_gpu,
    )


def operations(kernels: Sequence[Event], host: Sequence[Event]) -> Iterable[Event | None]:
    """For each kernel the operation that launched it; None where the trace does not tell.

    Some versions write numbers of another kind as a kernel's External id: they name an operation that was elsewhere.
    """
    ops = {event.args.get("External id"): event for event in host if event.category == "cpu_op"}
    launches = {event.args.get("correlation"): event for event in host if event.category.startswith("cuda_")}
    for kernel in kernels:
        op, launch = ops.get(kernel.args.get("External id")), launches.get(kernel.args.get("correlation"))
        yield op if op and (launch is None or op.start <= launch.start <= op.end) else None


def replays(kernels: Sequence[Event]) -> Spans:
    """From the first to the last kernel of each CUDA graph: one launch, one correlation, several kernels."""
    by_launch: dict[object, list[Event]] = {}
    for kernel in kernels:
        by_launch.setdefault(kernel.args.get("correlation"), []).append(kernel)
    by_launch.pop(None, None)
    return union(
        (min(kernel.start for kernel in together), max(kernel.end for kernel in together))
        for together in by_launch.values()
        if len(together) > 1
    )


def cpu_kind(op: Event) -> str:
    return "matrix" if PRODUCTS.match(op.name) else "memory"


def works(linked: Sequence[tuple[Event, Event | None]], whole: float, ceilings: Ceilings) -> list[Work]:
    """The kernels by name and operation, the longest first."""
    groups: dict[tuple[str, str, str], list[tuple[Event, Event | None]]] = {}
    for kernel, op in linked:
        groups.setdefault((short(kernel.name), op.name if op else "", kind_of(kernel, op)), []).append((kernel, op))
    found = []
    for (name, op_name, kind), members in groups.items():
        spent = sum(kernel.end - kernel.start for kernel, _ in members)
        ids = {id(op): op for _, op in members if op}
        done = [work_of(op) for op in ids.values()]
        alone = len(done) == len(members)  # several kernels of one operation: its shapes are not those of one kernel
        least = sum(ceilings.least(*work) for work in done) if alone else math.nan
        dtype = done[0][2] if done else ""
        found.append(Work(name, op_name, kind, dtype, len(members), spent, spent / whole, least / spent))
    return sorted(found, key=lambda work: -work.seconds)


def short(name: str) -> str:
    """A kernel's name without what its template was filled with."""
    name = re.sub(r"^void |\(anonymous namespace\)::", "", name)
    inner = re.search(r"(\w+Functor\w*|\w+_kernel_cuda|\w+_kernel_impl)", name)
    return re.sub(r"[<(].*", "", name).rpartition("::")[2].strip() + (f" {inner[1]}" if inner and "<" in name else "")


# ---- the report -----------------------------------------------------------------------------------------


def lines(found: Diagnosis, most: int = 5) -> Iterable[str]:
    """The diagnosis as text."""
    what = "kernels and copies" if found.on_gpu else "operations"
    yield f"{amount(found.step)} a step, {found.kernels:.0f} {what} in it, half of them under {amount(found.typical)}"
    if found.on_gpu:
        gaps = f"{found.gaps:.0f} gaps in which nothing does, the longest {amount(found.longest)}"
        yield f"a kernel runs for {1 - found.idle:.0%} of the step; {gaps}"
    else:
        yield "no GPU in this trace: kernels, copies to a GPU and waits for one cannot be seen; operations stand in"
    for cause, share in sorted(found.shares.items(), key=lambda item: -item[1]):
        if share >= 0.005:
            meaning = MEANING[cause] if found.on_gpu else MEANING[cause].replace("the GPU is idle", "no operation runs")
            yield f"  {share:4.0%}  {cause:10} {meaning}"
    for work in found.works[:most]:
        of_ceiling = "" if math.isnan(work.ceiling) else f"  {work.ceiling:.0%} of its ceiling"
        name = work.name if len(work.name) <= 44 else work.name[:43] + "…"
        from_op = f", {work.op}" if work.op not in ("", name) else ""
        yield f"  {work.share:4.0%}  {work.kind:10} {work.calls} x {name}{from_op}  {work.dtype}{of_ceiling}".rstrip()
    yield f"mostly {found.cause}; next:"
    yield f"  {CAUSES[found.cause]}"


def amount(of_seconds: float) -> str:
    """Seconds with a unit that suits them."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if of_seconds * factor >= 1 or unit == "us":
            return f"{of_seconds * factor:.3g} {unit}"
    raise AssertionError("microseconds suit whatever is shorter")


def main(arguments: list[str]) -> int:
    """Diagnose a trace; returns the exit status."""
    parser = argparse.ArgumentParser("diagnosis.py", description="Where did the time of a step go?")
    parser.add_argument("trace", help="what torch.profiler's export_chrome_trace wrote")
    parser.add_argument("--memory", type=float, default=math.nan, help="the machine's GB/s, to hold kernels against")
    for dtype in DTYPE.values():
        parser.add_argument(f"--{dtype}", type=float, default=math.nan, help="TFLOP/s of matrix products in it")
    options = parser.parse_args(arguments)
    matrix = {dtype: getattr(options, dtype) * 1e12 for dtype in DTYPE.values()}
    try:
        print(diagnose(read(options.trace), Ceilings(options.memory * 1e9, matrix)))
    except (ValueError, OSError) as error:
        print(f"diagnosis: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
