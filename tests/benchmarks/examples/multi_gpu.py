"""What one reduction per update saves of each micro-step: in ms, as the script of its runs prints them."""

from functools import partial

from tests.benchmarks.bounds import Input, bound, captured

step = partial(captured, "accumulation", which=3, of="examples/multi_gpu_overlap")
MICRO: dict[str, Input] = {"micro": 4}  # micro-steps of an update

# Of DDP, whose other steps are in no_sync.
saved_ddp = bound("", "(each - last) / micro", MICRO, each=step("DDP, each"), last=step("DDP, no_sync"))

# Of FSDP2.
saved_fsdp = bound("", "(each - last) / micro", MICRO, each=step("FSDP2, each"), last=step("FSDP2, last only"))
