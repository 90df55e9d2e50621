"""What one reduction per update saves of each micro-step, and the share of n times one GPU that steps reached."""

from functools import partial

from tests.benchmarks.bounds import Bound, Input, Macro, bound, captured

# ---- micro-steps, in ms ----

step = partial(captured, "accumulation", which=3, of="examples/multi_gpu_overlap")
MICRO: dict[str, Input] = {"micro": 4}  # micro-steps of an update

# Of DDP, whose other steps are in no_sync.
saved_ddp = bound("", "(each - last) / micro", MICRO, each=step("DDP, each"), last=step("DDP, no_sync"))

# Of FSDP2.
saved_fsdp = bound("", "(each - last) / micro", MICRO, each=step("FSDP2, each"), last=step("FSDP2, last only"))

# ---- shares of n times one GPU, on two GPUs ----


def predicted(strategy: str, which: int) -> Macro:
    return captured("scale", f"{strategy}  ", which=which, of="examples/multi_gpu")


def reached(strategy: str) -> Bound:
    """The share that was predicted, times how much longer the step took."""
    took = captured("time", f"{strategy}  ", which=9, of="examples/multi_gpu")
    given = {"share": predicted(strategy, 4), "step": predicted(strategy, 3)}
    return bound("%", "share * step / took", given, took=took)


share_ddp, share_blocks = reached("blocks, DDP"), reached("blocks, FSDP2")
