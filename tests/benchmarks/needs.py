"""How much of a GPU's memory a point needs, by what earlier records say of it; crew.py plans with it.

Records hold what each variant's call allocates at its peak, and the fewest bytes that it reads and writes. How often
these lie in memory while variants are built and checked follows from method.py and equivalence.compare.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.runner import Key, key, of_this_kind

KEPT_BESIDE = 2**28  # bytes: what empties the L2 cache before a sample
IN_A_CHECK = 6  # float64 copies of a result while it is compared, beside the reference
NO_MEMORY = ("OutOfMemory", "out of memory", "ALLOC_FAILED")


@dataclass(frozen=True)
class Need:
    """Bytes that a point holds from its first variant to its last, and what it needs beyond them for moments."""

    held: float
    peak: float = 0.0


def fit(needs: Iterable[Need], room: float) -> bool:
    """Whether points may be measured at the same time: nobody knows when each is at its peak."""
    return sum(need.held + need.peak for need in needs) <= room


def place(at: Mapping) -> Key:
    """What tells points apart."""
    return key(at, "", ())


def earlier(folders: Iterable[Path], device: torch.device) -> dict[Key, Need]:
    """What each point that this kind of machine has measured needs. Where memory did not suffice: all."""
    rows: dict[Key, list[Mapping]] = {}
    lacked: set[Key] = set()
    memory = 0
    for content in (content for folder in folders for content in of_this_kind(folder, device)):
        with contextlib.suppress(KeyError, TypeError):  # older than what is read here
            memory = content["machine"]["memory_bytes"]
            lacked |= {place(failure) for failure in content["failures"] if out_of_memory(failure["reason"])}
            for row in content["rows"]:
                rows.setdefault(place(row), []).append(row)
    return {at: of_rows(of, memory) for at, of in rows.items()} | dict.fromkeys(lacked, Need(memory))


def of_rows(rows: Sequence[Mapping[str, Any]], memory: int) -> Need:
    """What a point needs by the rows of its variants, on a GPU of so many bytes.

    Inputs and results are kept, these also in float64; a backward's variants each keep the outputs of their forward.
    For moments there are the plain op in float64, a comparison, or the call. A reference that fits into no GPU of this
    kind was computed in pieces. Where a case states no traffic, a quarter of the peak stands for its inputs.
    """
    read, results, call = (
        max(row[name] or 0 for row in rows) for name in ("bytes_read", "bytes_written", "peak_memory_bytes")
    )
    wide = torch.float64.itemsize // getattr(torch, rows[0]["dtype"]).itemsize
    inputs = read or call // 4
    outputs = len({row["variant"] for row in rows}) * results if rows[0]["direction"] == "backward" else 0
    held = KEPT_BESIDE + inputs + (1 + wide) * results + outputs
    moments = [wide * (inputs + call), IN_A_CHECK * wide * results]
    return Need(held, max([call, *(more for more in moments if held + more < memory)]))


def out_of_memory(reason: str) -> bool:
    return any(sign in reason for sign in NO_MEMORY)
