"""What a finding is, how those of the same kind at the same line become one, and how it is said."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from .calls import Call
from .lines import Line
from .names import words
from .rewrites import Rewrite

GROUPS = {  # by name: the title, and the kinds of findings that are in the group
    "readiness": ("Compilation readiness", words("graph-break recompilation cuda-graph")),
    "fusion": (
        "Fusion opportunities",
        words(
            "attention projections norm norm-activation gated-mlp rotary softmax-dropout cross-entropy written-out "
            "chain"
        ),
    ),
    "memory": ("Memory bottlenecks", words("copy temporary growing kept-graph saved")),
    "kernels": (
        "Kernel efficiency",
        words(
            "mask sync precision odd-size small-kernels decoding experts optimizer constant complex again wasted "
            "host-bound far-from-ceiling"
        ),
    ),
}
LAUNCH = 5e-6  # seconds of host time an eager operation: this and the next only order findings, and are never shown
MEMORY = 4e12  # bytes a second


# --8<-- [start:finding]
@dataclass(frozen=True)
class Finding:
    """One thing to change: what it is, where, how it is known, and the page that explains it.

    Attributes:
        kind: in one word or two, such as "graph-break".
        lines: all that take part, the one to look at first in front.
        saves: bytes that would not be moved in one forward, as far as they can be counted.
        kernels: launches that would not be made in one forward.
        weight: "finding", or "note" for what is worth knowing and no fault.
        rewrites: the change, as it can be made to a copy; none where only its author can.
        tried: what came of that; empty where it was not tried.
        helps: whether it was right and faster; None where it was not tried.
    """

    kind: str
    title: str
    lines: tuple[Line, ...]
    evidence: str
    change: str
    page: str
    saves: int = 0
    kernels: int = 0
    times: int = 1
    weight: str = "finding"
    rewrites: tuple[Rewrite, ...] = field(default=(), compare=False, repr=False)
    tried: str = ""
    helps: bool | None = None

    @property
    def group(self) -> str:
        return next(name for name, (_, kinds) in GROUPS.items() if self.kind in kinds)

    @property
    def line(self) -> Line:
        return self.lines[0]

    @property
    def gain(self) -> float:
        """Seconds, roughly, on a large GPU: only the order of findings comes from it."""
        return self.saves / MEMORY + self.kernels * LAUNCH


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """The same finding in every layer of a model is one, found so many times; the largest gain first."""
    found: dict[tuple, Finding] = {}
    for one in findings:
        key = one.kind, one.line.file, one.line.number, one.weight
        if key in found:
            old = found[key]
            both = tuple(dict.fromkeys((*old.lines, *one.lines)))
            found[key] = replace(
                old,
                lines=both,
                saves=old.saves + one.saves,
                kernels=old.kernels + one.kernels,
                times=old.times + one.times,
                rewrites=both_or_none(old.rewrites, one.rewrites),
            )
        else:
            found[key] = one
    return ranked(found.values())


# --8<-- [end:finding]


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Findings before notes, the largest gain first; faster products come after what leaves products out, or helps."""
    found = list(findings)
    before = [one.gain for one in found if one.weight == "finding" and (one.kind in DELETES or one.helps)]

    def place(one: Finding) -> tuple:
        behind = one.kind == "precision" and bool(before) and one.helps is None
        return one.weight != "finding", -min(one.gain, *before) if behind else -one.gain, behind

    return sorted(found, key=place)


DELETES = words("wasted again experts")


def both_or_none(some: tuple[Rewrite, ...], others: tuple[Rewrite, ...]) -> tuple[Rewrite, ...]:
    """All of a finding's places, or none: half of a change says nothing of the whole."""
    return (*some, *others) if some and others else ()


def in_order(calls: Iterable[Call], first: Call | None = None) -> tuple[Line, ...]:
    """The lines of some calls, each once, as they ran; what a comprehension calls is on its function's line."""
    lines = [call.line for call in sorted(calls, key=lambda call: call.index)]
    once: dict[tuple[str, int], Line] = {}
    for line in [*([first.line] if first else []), *lines]:
        once.setdefault((line.file, line.number), line)
    return tuple(once.values())


def size(count: float) -> str:
    """Bytes, as people say them."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 99.5 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
