"""Bounds that docs/pages/validation/profiling.md names; it has no case."""

from functools import partial

from tests.benchmarks.bounds import bound, captured, gpu

printed = partial(captured, of="validation/profiling_programs")
counted = partial(captured, "counters", "gpu__time_duration.sum", of="validation/profiling_counters")
CALLS, NAMED = (f'{{"name": "{name}",' for name in ("CUDA calls", "named by record_function"))  # of a timeline
MILLION = {"million": 1000000}
eager, compiled = (partial(printed, f"{what}, timeline") for what in ("eager", "compiled"))
# The host's time of a step in `cudaStreamSynchronize`, by the profiler's table.
waiting_in_sync = bound("ms", "all / steps", all=printed("waiting, table", "cudaStreamSynchronize", which=2), steps=3)
# From the start of the eager forward to its first launch.
eager_forward_to_launch = bound(
    "us", "(launch - begin) / million", MILLION, launch=eager(CALLS, which=1), begin=eager(NAMED, which=1)
)
# From the start of the compiled forward to its first launch.
compiled_forward_to_launch = bound(
    "us", "(launch - begin) / million", MILLION, launch=compiled(CALLS, which=1), begin=compiled(NAMED, which=1)
)
# From the start of the eager backward to its first launch after that of `ones_like`.
eager_backward_to_launch = bound(
    "us", "(launch - begin) / million", MILLION, launch=eager(CALLS, which=21), begin=eager(NAMED, which=3)
)
# From the start of the compiled backward to its first launch after that of `ones_like`.
compiled_backward_to_launch = bound(
    "us", "(launch - begin) / million", MILLION, launch=compiled(CALLS, which=17), begin=compiled(NAMED, which=3)
)
# The host's time in the optimizer of the eager step.
eager_optimizer = bound("us", "length / million", MILLION, length=eager(NAMED, which=6))
# The host's time in the optimizer of the step with a compiled loss.
compiled_optimizer = bound("us", "length / million", MILLION, length=compiled(NAMED, which=6))
# The host's time in the guards of the compiled forward.
guards_of_forward = bound("us", "guards / million", MILLION, guards=compiled('{"name": "operations",', which=2))
# How many times as long the same optimizer took in the second recording.
optimizer_slower = bound("x", "compiled / eager", compiled=compiled(NAMED, which=6), eager=eager(NAMED, which=6))
# The host's time for a launch, by the profiler's table.
launch_with_full_queue = bound(
    "us", "all / calls", all=printed("full", "cudaLaunchKernel", which=2), calls=printed("full", "cudaLaunchKernel")
)
# How many times as long as RMSNorm the transposing kernel takes.
transposing_slower = bound("x", "third / first", third=counted(which=3), first=counted())
# The time for which the GPU is busy in all recorded steps.
busy_in_all_steps = bound("ms", "steps * busy", steps=3, busy=printed("eager", "GPU busy:"))
# The JSON of a hundred steps with five thousand launches each, at the size for each launch here.
size_of_large_trace = bound(
    "GB", "size / launches * many * steps",
    size=printed("eager, costs", "profiler", which=4), launches=printed("eager", "launches:"), many=5000, steps=100,
)  # fmt: skip
# How many of 16 requests for a sector find it in the L2: all but the first.
sectors_found = bound("%", "hits / all", hits=15, all=16)
# RMSNorm's time by this site's timer.
rms_norm_alone = bound("us", "time", time=gpu("ours", "typical", case="kernels/rms-norm"))
