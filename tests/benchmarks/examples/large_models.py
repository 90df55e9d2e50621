"""How far below the room that its script prints a step's predicted peak has to be: in GiB, as the script's sizes."""

from tests.benchmarks.bounds import Input, bound, captured

GIB = 2**30
# The script has left 1 GiB of the GPU out of it.
MEMORY: dict[str, Input] = {"room": captured("large", "room:"), "gib": GIB}

# What a predicted peak leaves of the room, of a step that ran out of memory.
left_plain = bound("", "(room - peak) / gib", MEMORY, peak=captured("large", "3B, 3 rows: as it comes"))

# The same of another that ran out of memory.
left_bf16 = bound("", "(room - peak) / gib", MEMORY, peak=captured("large", "3B, 4 rows: bf16 states"))

# The same of one that ran.
left_compiled = bound("", "(room - peak) / gib", MEMORY, peak=captured("large", "3B, 4 rows: blocks compiled"))
