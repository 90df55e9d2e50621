"""What one reduction per update saves of each micro-step, and the share of n times one GPU that steps reached."""

from functools import partial

from tests.benchmarks.bounds import Bound, Input, bound, captured

# ---- micro-steps, in ms ----

step = partial(captured, "accumulation", which=3, of="examples/multi_gpu_overlap")
MICRO: dict[str, Input] = {"micro": 4}  # micro-steps of an update

# Of DDP, whose other steps are in no_sync.
saved_ddp = bound("", "(each - last) / micro", MICRO, each=step("DDP, each"), last=step("DDP, no_sync"))

# Of FSDP2.
saved_fsdp = bound("", "(each - last) / micro", MICRO, each=step("FSDP2, each"), last=step("FSDP2, last only"))

# ---- shares of n times one GPU, on two GPUs ----


def reached(strategy: str) -> Bound:
    """The step of the same program on one GPU, divided by the step on two."""
    step = partial(captured, "time", f"{strategy}  ", of="examples/multi_gpu")
    return bound("%", "one / took", one=step(which=1), took=step(which=9))


share_ddp, share_blocks = reached("blocks, DDP"), reached("blocks, FSDP2")
