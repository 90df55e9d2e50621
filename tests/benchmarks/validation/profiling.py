"""Bounds that docs/pages/validation/profiling.md names; it has no case."""

from tests.benchmarks.bounds import bound, captured, gpu


@bound(
    "ms", all=captured("waiting, table", "cudaStreamSynchronize", which=2, of="validation/profiling_programs"), steps=3
)
def waiting_in_sync(all: float, steps: float) -> float:
    """The host's time of a step in `cudaStreamSynchronize`, by the profiler's table."""
    return all / steps


@bound(
    "us",
    million=1000000,
    launch=captured("eager, timeline", '{"name": "CUDA calls",', which=1, of="validation/profiling_programs"),
    begin=captured(
        "eager, timeline", '{"name": "named by record_function",', which=1, of="validation/profiling_programs"
    ),
)
def eager_forward_to_launch(million: float, launch: float, begin: float) -> float:
    """From the start of the eager forward to its first launch."""
    return (launch - begin) / million


@bound(
    "us",
    million=1000000,
    launch=captured("compiled, timeline", '{"name": "CUDA calls",', which=1, of="validation/profiling_programs"),
    begin=captured(
        "compiled, timeline", '{"name": "named by record_function",', which=1, of="validation/profiling_programs"
    ),
)
def compiled_forward_to_launch(million: float, launch: float, begin: float) -> float:
    """From the start of the compiled forward to its first launch."""
    return (launch - begin) / million


@bound(
    "us",
    million=1000000,
    launch=captured("eager, timeline", '{"name": "CUDA calls",', which=21, of="validation/profiling_programs"),
    begin=captured(
        "eager, timeline", '{"name": "named by record_function",', which=3, of="validation/profiling_programs"
    ),
)
def eager_backward_to_launch(million: float, launch: float, begin: float) -> float:
    """From the start of the eager backward to its first launch after that of `ones_like`."""
    return (launch - begin) / million


@bound(
    "us",
    million=1000000,
    launch=captured("compiled, timeline", '{"name": "CUDA calls",', which=17, of="validation/profiling_programs"),
    begin=captured(
        "compiled, timeline", '{"name": "named by record_function",', which=3, of="validation/profiling_programs"
    ),
)
def compiled_backward_to_launch(million: float, launch: float, begin: float) -> float:
    """From the start of the compiled backward to its first launch after that of `ones_like`."""
    return (launch - begin) / million


@bound(
    "us",
    million=1000000,
    length=captured(
        "eager, timeline", '{"name": "named by record_function",', which=6, of="validation/profiling_programs"
    ),
)
def eager_optimizer(million: float, length: float) -> float:
    """The host's time in the optimizer of the eager step."""
    return length / million


@bound(
    "us",
    million=1000000,
    length=captured(
        "compiled, timeline", '{"name": "named by record_function",', which=6, of="validation/profiling_programs"
    ),
)
def compiled_optimizer(million: float, length: float) -> float:
    """The host's time in the optimizer of the step with a compiled loss."""
    return length / million


@bound(
    "us",
    million=1000000,
    guards=captured("compiled, timeline", '{"name": "operations",', which=2, of="validation/profiling_programs"),
)
def guards_of_forward(million: float, guards: float) -> float:
    """The host's time in the guards of the compiled forward."""
    return guards / million


@bound(
    "x",
    compiled=captured(
        "compiled, timeline", '{"name": "named by record_function",', which=6, of="validation/profiling_programs"
    ),
    eager=captured(
        "eager, timeline", '{"name": "named by record_function",', which=6, of="validation/profiling_programs"
    ),
)
def optimizer_slower(compiled: float, eager: float) -> float:
    """How many times as long the same optimizer took in the second recording."""
    return compiled / eager


@bound(
    "us",
    all=captured("full", "cudaLaunchKernel", which=2, of="validation/profiling_programs"),
    calls=captured("full", "cudaLaunchKernel", which=1, of="validation/profiling_programs"),
)
def launch_with_full_queue(all: float, calls: float) -> float:
    """The host's time for a launch, by the profiler's table."""
    return all / calls


@bound(
    "x",
    third=captured("counters", "gpu__time_duration.sum", which=3, of="validation/profiling_counters"),
    first=captured("counters", "gpu__time_duration.sum", of="validation/profiling_counters"),
)
def transposing_slower(third: float, first: float) -> float:
    """How many times as long as RMSNorm the transposing kernel takes."""
    return third / first


@bound("ms", steps=3, busy=captured("eager", "GPU busy:", of="validation/profiling_programs"))
def busy_in_all_steps(steps: float, busy: float) -> float:
    """The time for which the GPU is busy in all recorded steps."""
    return steps * busy


@bound(
    "GB",
    size=captured("eager, costs", "profiler", which=4, of="validation/profiling_programs"),
    launches=captured("eager", "launches:", of="validation/profiling_programs"),
    many=5000,
    steps=100,
)
def size_of_large_trace(size: float, launches: float, many: float, steps: float) -> float:
    """The JSON of a hundred steps with five thousand launches each, at the size for each launch here."""
    return size / launches * many * steps


@bound("%", hits=15, all=16)
def sectors_found(hits: float, all: float) -> float:
    """How many of 16 requests for a sector find it in the L2: all but the first."""
    return hits / all


@bound("us", time=gpu("ours", "typical", case="kernels/rms-norm"))
def rms_norm_alone(time: float) -> float:
    """RMSNorm's time by this site's timer."""
    return time
