"""The prediction of exposed communication: compute and link as two lines."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from snippets.examples.multi_gpu_ranks import MIB
from snippets.reference.communication import Rates, seconds

# --8<-- [start:predict]
Messages = list[tuple[str, float]]


@dataclass
class Work:
    """What a GPU computes in one go; what must have arrived before it, and what it sends after it."""

    compute: float  # seconds
    gather: Messages = field(default_factory=list)
    reduce: Messages = field(default_factory=list)


def timeline(works: Sequence[Work], rates: Rates, overlap: bool = True) -> float:
    """Seconds of a step beyond its compute. Gathers run one unit ahead, reductions behind, one message at a time."""
    took = [[sum(seconds(*message, rates) for message in m) for m in (work.gather, work.reduce)] for work in works]
    if not overlap:
        return sum(map(sum, took))
    arrived = link = took[0][0]
    now = 0.0
    for i, (work, (_, reduce)) in enumerate(zip(works, took, strict=True)):
        start = max(now, arrived)
        if i + 1 < len(works) and took[i + 1][0]:
            link = arrived = max(link, start) + took[i + 1][0]
        now = start + work.compute
        if reduce:
            link = max(link, now) + reduce
    return max(now, link) - sum(work.compute for work in works)


def buckets(parts: Sequence[Sequence[int]], cap: float = 25 * MIB) -> list[Messages]:
    """What DDP sends after each part of the backward: it closes a bucket as soon as it has bucket_cap_mb."""
    sent_after: list[Messages] = []
    filled = 0.0
    for part in parts:
        messages: Messages = []
        for size in part:
            filled += size
            if filled >= cap:
                messages.append(("all-reduce", filled))
                filled = 0
        sent_after.append(messages)
    if filled:
        sent_after[-1].append(("all-reduce", filled))
    return sent_after


# --8<-- [end:predict]
