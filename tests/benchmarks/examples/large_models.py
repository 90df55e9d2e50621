"""How much room a step's predicted peak has to leave on the GPU: in GiB, as its script prints sizes."""

from tests.benchmarks.bounds import Input, bound, captured

GIB = 2**30
# The script leaves 1 GiB of the GPU out of its room.
MEMORY: dict[str, Input] = {"room": captured("large", "room:"), "gib": GIB}

# What a predicted peak leaves of the GPU, of a step that ran out of memory.
left_plain = bound("", "(room + gib - peak) / gib", MEMORY, peak=captured("large", "3B, 3 rows: as it comes"))

# The same of another that ran out of memory.
left_bf16 = bound("", "(room + gib - peak) / gib", MEMORY, peak=captured("large", "3B, 4 rows: bf16 states"))

# The same of one that ran.
left_compiled = bound("", "(room + gib - peak) / gib", MEMORY, peak=captured("large", "3B, 4 rows: blocks compiled"))
