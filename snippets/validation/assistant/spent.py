"""What the steps of a trace were spent on, by cause and line; and of several ranks, who waits for whom."""

import bisect
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from .losses import LEAST, Loss, Place, Reading
from .traces import BACKWARD, Event, Spans, Trace, seconds, union, without

LAUNCH = re.compile(r"(cuda|cu|hip)\w*(Launch|Memcpy|Memset)")
WAIT = re.compile(r"(cuda|cu|hip)\w*Synchronize|(cuda|hip)Memcpy(?!\w*Async)")
PRODUCT = re.compile(
    r"aten::(mm|bmm|addmm|baddbmm|linear|matmul|einsum|_scaled_mm|\w*conv\w*|\w*attention\w*)$"
    r"|(?<!fb)gemm|cutlass|scudnn|nvjet|xmma|cublas|wgrad|dgrad|flash|fmha|triton_tem|implicit_con",
    re.IGNORECASE,
)
FUSED = re.compile(r"triton_|Torch-Compiled Region|CompiledFunction|nccl|Optimizer|multi_tensor|_foreach|_fused", re.I)
UNFUSED = 0.3  # of a step in operations that nobody fused
PARTS = 32  # of such a time, each of which has a line
LONG = 5e-4  # seconds without an operation: less may be the profiler's own cost
Key = tuple[str, Place]


@dataclass
class Spent:
    """Seconds of all steps of a trace.

    Attributes:
        by: cause and line.
        kernels: by name and line.
        busy: seconds in which a kernel runs.
        window: from the first step's beginning to the last kernel's end.
    """

    trace: Trace
    window: tuple[float, float]
    busy: float = 0.0
    by: dict[Key, float] = field(default_factory=lambda: defaultdict(float))
    kernels: dict[Key, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def step(self) -> float:
        return (self.window[1] - self.window[0]) / self.trace.steps

    def losses(self) -> list[Loss]:
        """The causes that stand out, the largest first."""
        found = [self.loss(cause) for cause in dict.fromkeys(cause for cause, _ in self.by)]
        least = {"memory": UNFUSED, "fp32": UNFUSED}
        found = [loss for loss in found if loss.share >= least.get(loss.cause, LEAST)]
        return sorted(found, key=lambda loss: -loss.seconds)

    def loss(self, cause: str) -> Loss:
        lines = {line: spent / self.trace.steps for (name, line), spent in self.by.items() if name == cause}
        named: dict[Place, float] = {line: spent for line, spent in lines.items() if line is not None} or lines
        most = max(named, key=lambda line: named[line])
        whole = sum(lines.values())
        return Loss(cause, whole, whole / self.step, most, named[most])

    def longest(self) -> str:
        """The kernel, or on a CPU the operation, that takes most of a step."""
        if not self.kernels:
            return ""
        (name, line), spent = max(self.kernels.items(), key=lambda item: item[1])
        spent /= self.trace.steps
        what = "kernel" if self.trace.kernels else "operation"
        return (
            f"longest {what}: {spent * 1e3:.2f} ms, {spent / self.step:.0%}, {short(name)}{f', {line}' if line else ''}"
        )


def spent_on(trace: Trace) -> Spent:
    kernels = trace.kernels or operations(trace)
    start = min([mark.start for mark in trace.marks] or [event.start for event in [*kernels, *trace.ops.outermost()]])
    found = Spent(trace, (start, max(event.end for event in [*trace.marks, *kernels])))
    busy = union(event.span for event in kernels)
    found.busy = seconds(busy)
    gaps = without([found.window], busy)
    work(found, kernels)
    if trace.kernels:
        idle_gpu(found, gaps)
    else:
        idle_host(found, gaps)
    return found


COMPILES, LOADS = r".*\(dynamo_timed\)$", r"enumerate\(DataLoader\)"


def operations(trace: Trace) -> list[Event]:
    """Without a GPU the outermost operations stand in for kernels, but not those that a compiler tries."""
    compiling = union(event.span for event in trace.host(COMPILES))
    return [op for op in trace.host("aten::|Torch-Compiled Region") if without([op.span], compiling)]


# ---- when something runs --------------------------------------------------------------------------------------------


def work(found: Spent, kernels: Sequence[Event]) -> None:
    """Account for the moments in which something runs: copies and NCCL where they run alone, and the kernels."""
    trace, launches = found.trace, launches_of(found.trace)
    compute = [event for event in kernels if kind_of(event) == "compute"]
    covered = union(event.span for event in compute)
    for kind in ("network", "pageable", "copying", "waiting"):
        mine = [event for event in kernels if kind_of(event) == kind]
        for event in mine:
            found.by[kind, launched_at(trace, launches, event)] += seconds(without([event.span], covered))
        covered = union([*covered, *(event.span for event in mine)])
    for event in compute:
        line, op = launched_at(trace, launches, event), op_of(trace, launches, event)
        found.kernels[event.name, line] += event.length
        product = PRODUCT.search(event.name) or (op and PRODUCT.search(op.name))
        if not product and not FUSED.search(event.name) and not (op and FUSED.search(op.name)):
            found.by["optimizer" if in_optimizer(trace, launches, event) else "memory", line] += event.length
        elif product and trace.kernels and in_fp32(event, op):
            found.by["fp32", line] += event.length


def kind_of(event: Event) -> str:
    name = event.name
    if event.category == "gpu_memcpy" and "DtoD" not in name:
        return "waiting" if "DtoH" in name else "pageable" if "Pageable" in name else "copying"
    return "network" if event.category == "kernel" and "nccl" in name.lower() else "compute"


def in_fp32(kernel: Event, op: Event | None) -> bool:
    """Whether a product has float32 inputs and no kernel that says otherwise."""
    types = op.args.get("Input type", []) if op else []
    return (
        not re.search(r"tf32|s1688|bf16|f16|h?884", kernel.name)
        and "float" in types
        and not re.search("attention", op.name if op else "")
    )


def launches_of(trace: Trace) -> dict[object, Event]:
    return {call.args["correlation"]: call for call in trace.calls if "correlation" in call.args}


def launched_at(trace: Trace, launches: dict[object, Event], event: Event) -> Place:
    """The line that launched a kernel; an operation of a CPU is its own launch."""
    call = launches.get(event.args.get("correlation"), None if trace.kernels else event)
    return trace.place_at(call.thread, call.start) if call else None


def in_optimizer(trace: Trace, launches: dict[object, Event], event: Event) -> bool:
    call = launches.get(event.args.get("correlation"), None if trace.kernels else event)
    around = trace.named.around(call.thread, call.start) if call else ()
    return any(one.name.startswith("Optimizer.step#") for one in around)


def op_of(trace: Trace, launches: dict[object, Event], event: Event) -> Event | None:
    """The operation that launched a kernel: the innermost that is a product, or the outermost below backward."""
    call = launches.get(event.args.get("correlation"), None if trace.kernels else event)
    around = [op for op in trace.ops.around(call.thread, call.start) if BACKWARD not in op.name] if call else []
    return next((op for op in around if PRODUCT.search(op.name) and "Input type" in op.args), next(iter(around), None))


# ---- when nothing runs ----------------------------------------------------------------------------------------------


def idle_host(found: Spent, gaps: Spans) -> None:
    """Without a GPU: what the host does between operations."""
    trace = found.trace
    thread = main_thread(trace)
    for left in gaps:
        for piece in known(found, [left]):
            if piece[1] - piece[0] >= LONG:
                python(found, thread, *piece)


def python(found: Spent, thread: object, start: float, end: float) -> None:
    """Account for a long time without an operation by what runs in the middle of each of its parts."""
    part = (end - start) / PARTS
    for number in range(PARTS):
        found.by["python", found.trace.place_at(thread, start + (number + 0.5) * part)] += part


def main_thread(trace: Trace) -> object:
    if trace.marks:
        return trace.marks[0].thread
    return max(trace.ops.of, key=lambda thread: len(trace.ops.of[thread]), default=0)


def known(found: Spent, left: Spans) -> Spans:
    """Account for the moments in which the host compiles or loads; the others are returned."""
    for cause, pattern in (("compiling", COMPILES), ("loading", LOADS)):
        for event in found.trace.host(pattern):
            taken = seconds(left) - seconds(rest := without(left, [event.span]))
            if taken:
                found.by[cause, found.trace.place_at(event.thread, event.start)] += taken
                left = rest
    return left


def idle_gpu(found: Spent, gaps: Spans) -> None:
    """Each moment in which the GPU does nothing is the cost of what the host did before the next launch."""
    trace, launches = found.trace, launches_of(found.trace)
    graphs = replays(trace.kernels)
    idle = without(gaps, graphs)
    if inside_graphs := seconds(gaps) - seconds(idle):
        found.by["starting", None] += inside_graphs
    kernels = sorted(trace.kernels, key=lambda event: event.start)
    starts = [event.start for event in kernels]
    last = max((call.start for call in trace.calls if LAUNCH.match(call.name)), default=0.0)
    waits = sorted((call for call in trace.calls if WAIT.match(call.name) and call.end < last), key=lambda one: one.end)
    ends = [wait.end for wait in waits]
    for start, end in known(found, idle):
        at = bisect.bisect_left(starts, end)
        launch = launches.get(kernels[at].args.get("correlation")) if at < len(kernels) else None
        wait = bisect.bisect_left(ends, start)
        if launch and wait < len(waits) and waits[wait].end <= end:
            found.by[after_wait(trace, waits[wait], kernels, starts, start)] += end - start
        elif takes_long(trace, start, min(end, launch.start) if launch else end):
            python(found, launch.thread if launch else main_thread(trace), start, end)
        else:
            found.by["launching", trace.place_at(launch.thread, launch.start) if launch else None] += end - start


def after_wait(trace: Trace, wait: Event, kernels: Sequence[Event], starts: Sequence[float], idle_from: float) -> Key:
    """The GPU had run out of work while the host waited for it, or for a copy to it."""
    before = kernels[bisect.bisect_right(starts, idle_from) - 1]
    cause = "pageable" if kind_of(before) == "pageable" else "waiting"
    return cause, trace.place_at(wait.thread, wait.start)


def takes_long(trace: Trace, start: float, end: float) -> bool:
    """Whether the host did not launch because Python ran, and no operation for most of the time."""
    if end - start < LONG:
        return False
    ops = union(op.span for op in trace.ops.outermost() if op.end > start and op.start < end)
    return seconds(without([(start, end)], ops)) > (end - start) / 2


def replays(kernels: Sequence[Event]) -> Spans:
    """From the first to the last kernel of each CUDA graph: one launch, one correlation, several kernels."""
    by_launch: dict[object, list[Event]] = defaultdict(list)
    for kernel in kernels:
        by_launch[kernel.args.get("correlation")].append(kernel)
    by_launch.pop(None, None)
    return union(
        (min(kernel.start for kernel in together), max(kernel.end for kernel in together))
        for together in by_launch.values()
        if len(together) > 1
    )


# ---- what is said ---------------------------------------------------------------------------------------------------


def read_one(trace: Trace) -> Reading:
    """What a trace of one process says."""
    found = spent_on(trace)
    step = f"{found.step * 1e3:.2f} ms a step, {trace.steps} step{'s' * (trace.steps > 1)}"
    share = f"{found.busy / (found.step * trace.steps):.0%} of the time"
    runs = f"the GPU works {share}" if trace.kernels else f"no GPU in it; operations run {share}"
    return Reading(f"{trace.name}: {step}; {runs}", found.losses(), found.longest())


def read_ranks(traces: Sequence[Trace]) -> Reading:
    """What the traces of several ranks say: who is slow, how long the others wait, and for what else."""
    ranks = {trace.rank if trace.rank is not None else number: spent_on(trace) for number, trace in enumerate(traces)}
    waits = waited(ranks)
    slow = min(waits, key=lambda rank: waits[rank])
    others = [rank for rank in ranks if rank != slow]
    wait = statistics.mean(waits[rank] for rank in others)
    step = statistics.mean(one.step for one in ranks.values())
    line, more = does_more(ranks, slow)
    losses = [loss for loss in ranks[slow].losses() if loss.cause != "network"]
    if wait >= LEAST * step:
        detail = f"rank {slow} is the slowest" + (f", {more * 1e3:.2f} ms more at this line" if line else "")
        losses = [Loss("rank", wait, wait / step, line, wait, detail), *losses]
    told = ", ".join(f"rank {rank} {alone(one) * 1e3:.2f} ms" for rank, one in sorted(ranks.items()))
    head = f"{len(ranks)} ranks, {step * 1e3:.2f} ms a step"
    beside = {rank: alone(one) - waits[rank] for rank, one in ranks.items()}
    most = max(beside, key=lambda rank: beside[rank])
    if beside[most] >= LEAST * step:
        network = replace(ranks[most].loss("network"), seconds=beside[most], share=beside[most] / step)
        losses = sorted([network, *losses], key=lambda loss: -loss.seconds)
    return Reading(head, losses, f"NCCL alone, a step: {told}")


def alone(spent: Spent) -> float:
    """Seconds of a step in which NCCL runs, and nothing else."""
    return sum(taken for (cause, _), taken in spent.by.items() if cause == "network") / spent.trace.steps


def waited(ranks: dict[int, Spent]) -> dict[int, float]:
    """For each rank the seconds of a step that its collectives last longer than on the rank that comes last.

    A collective ends on all ranks at once, so its kernel is shortest on the one for which the others wait.
    """
    found = dict.fromkeys(ranks, 0.0)
    lists = {rank: dict(collectives(spent.trace)) for rank, spent in ranks.items()}
    for name in set.intersection(*(set(one) for one in lists.values())):
        for together in zip(*(lists[rank][name] for rank in ranks), strict=False):
            least = min(event.length for event in together)
            for rank, event in zip(ranks, together, strict=True):
                found[rank] += (event.length - least) / ranks[rank].trace.steps
    return found


def collectives(trace: Trace) -> Iterator[tuple[object, list[Event]]]:
    """The kernels of NCCL, in order, for each kind and group."""
    by_kind: dict[object, list[Event]] = defaultdict(list)
    for event in sorted(trace.kernels, key=lambda event: event.start):
        if kind_of(event) == "network" and "SendRecv" not in event.name:
            by_kind[event.name, event.args.get("Process Group Name")].append(event)
    yield from by_kind.items()


def does_more(ranks: dict[int, Spent], slow: int) -> tuple[Place, float]:
    """The line at which the slow rank spends more of a step than the others, with or without a kernel."""
    by_line = {rank: at_lines(spent) for rank, spent in ranks.items()}
    usual = {
        line: statistics.median(one[line] for rank, one in by_line.items() if rank != slow) for line in by_line[slow]
    }
    more = {line: by_line[slow][line] - usual[line] for line in usual if line is not None}
    most = max(more, key=lambda line: more[line], default=None)
    return most, more[most] if most else 0.0


def at_lines(spent: Spent) -> dict[Place, float]:
    found: dict[Place, float] = defaultdict(float)
    idle = ("waiting", "launching", "python", "loading", "pageable", "copying", "compiling")
    for (cause, line), taken in [
        *spent.by.items(),
        *((("waiting", line), t) for (_, line), t in spent.kernels.items()),
    ]:
        if cause in idle:
            found[line] += taken / spent.trace.steps
    return found


def short(name: str) -> str:
    """A kernel's name without what its template was filled with."""
    name = re.sub(r"^void |\(anonymous namespace\)::|<unnamed>::", "", name)
    inner = re.search(r"(\w+[Ff]unctor\w*|\w+_kernel_cuda|\w+_kernel_impl)", name)
    plain = re.split(r"[<(]", name)[0]
    plain = plain if plain.startswith("aten::") else plain.rpartition("::")[2]
    return (plain.strip() + (f" {inner[1]}" if inner and "<" in name and inner[1] != plain else ""))[:60]
