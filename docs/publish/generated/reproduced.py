"""The site's own proof: what was measured again on a separately started machine, and how closely it agrees."""

import itertools
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html import escape

from docs.publish import palette, units
from docs.publish.markup import blocks, code, front_matter, table
from docs.publish.place import Place
from docs.publish.records import reruns
from docs.publish.records.measured import RUNS, Coordinates, Measured, of_the_bandwidth_ceiling
from docs.publish.records.store import Store

WITHIN = 0.05  # what two GPU times may differ by
LONG = 20e-6  # seconds from which the goal counts: shorter ones are little but the way to the first kernel
WORST = 8  # rows listed a machine
SIZES = {"wide": (720, 26), "narrow": (350, 46)}  # of the figure: its width and that of a strip, in pixels
RATIOS = 0.8, 1.25  # its ends; what is beyond stands at them


@dataclass(frozen=True)
class Again:
    """One row measured twice, on separately started machines."""

    first: Measured
    second: Measured

    @cached_property
    def metric(self) -> str:
        """Rates of matrix products are compared as shares of the ceiling of their own run, everything else as times."""
        matrix, memory = self.first.metric("rate_share") or 0, of_the_bandwidth_ceiling(self.first.row)
        comparable = self.first.mode != "calls" and self.second.metric("rate_share")
        return "rate_share" if matrix > memory and comparable else "time"

    @cached_property
    def values(self) -> tuple[float, float]:
        first, second = (row.metric(self.metric) for row in (self.first, self.second))
        assert first and second  # every row has a time, and a share where `metric` says so
        return first, second

    @property
    def ratio(self) -> float:
        """The second to the first: above one, the second was slower, or reached more of its ceiling."""
        return self.values[1] / self.values[0]

    @property
    def off(self) -> float:
        """How far apart, whichever is larger: 0.05 for a twentieth more."""
        return max(self.ratio, 1 / self.ratio) - 1

    @property
    def agrees(self) -> bool:
        return self.off <= WITHIN


@dataclass(frozen=True)
class Case:
    """What was measured again of a case.

    Attributes:
        starts: of the machines that measured its newest code.
        gpu, calls: GPU times, and times by the host's clock, pair by pair of runs.
        hosts: the current rows by the host's clock.
    """

    name: str
    starts: list[str]
    gpu: list[Again]
    calls: list[Again]
    hosts: list[Measured]

    @property
    def ranges(self) -> list[list[float]]:
        """The times behind each published range, in the order of their runs."""
        return [[row.time.p50 for row in host.again] for host in self.hosts if len(host.again) >= RUNS]


def page(store: Store, place: Place) -> str:
    """The page as Markdown."""
    parts = [
        front_matter("Reproduced", "What was measured again on another machine, and how closely it agrees"),
        "This page compares runs of the same code with the same software on separately started machines, row by row.",
        f"The goal: every GPU time within {units.text(WITHIN, '%', exact=True)}, and every wall-clock time in "
        "its published range. GPU times are those of the modes `device`, `graph`, `burst` and `sustained`. For "
        "compute-bound rows, we compare the percentage of the measured FLOP/s peak, because clocks differ from card "
        "to card. Back-to-back calls (`calls`) depend on the processor as much "
        f"as on the code; from {RUNS} machines on they are published as "
        f'<a href="{place.to("results/methodology/#host-bound-numbers")}">the range over them</a>.',
    ]
    newest = {machine: store.newest_record(Coordinates(machine=machine)).machine for machine in store.machines}
    machines = [machine for machine in newest if newest[machine]["kind"] == "gpu"]
    for machine in machines:
        parts += [f"## {store.machines[machine]} {{ #{machine} }}", *_machine(store, machine)]
    return blocks(parts)


def cases(store: Store, machine: str) -> list[Case]:
    """What was measured again of each case, by name."""
    current = store.select(Coordinates(machine=machine))
    return [_case(store, machine, name) for name in sorted({row.case for row in current})]


def _case(store: Store, machine: str, name: str) -> Case:
    current = store.select(Coordinates(name, machine=machine))
    hashes = {row.row.sources.code for row in current if not row.stale}
    known = [row for row in store.select(Coordinates(name, machine=machine), history=True) if not row.busy]
    sessions: dict[str, dict[Coordinates, Measured]] = {}
    for row in known:  # oldest first: of what one start of a machine has measured twice, the newer counts
        if row.row.sources.code in hashes:
            sessions.setdefault(_start(row), {})[row.coordinates] = row
    pairs = [
        Again(one[at], other[at])
        for one, other in itertools.combinations(sessions.values(), 2)
        for at in one  # in its order, as a set's differs from build to build
        if at in other and reruns.same_software(one[at].record, other[at].record)
    ]
    gpu, calls = ([pair for pair in pairs if (pair.first.mode == "calls") is host] for host in (False, True))
    return Case(name, list(sessions), gpu, calls, [row for row in current if row.mode == "calls"])


def _start(row: Measured) -> str:
    """The start of a machine that measured a row; of an old record, which names none, the run itself."""
    return reruns.started(row.record) or f"run of {row.record.date[:16].replace('T', ' ')}"


def _machine(store: Store, machine: str) -> Iterator[str]:
    known = cases(store, machine)
    gpu = [pair for case in known for pair in case.gpu]
    yield f"<p>{_verdict(known, gpu)}</p>"
    if any(not reruns.started(row.record) for row in store.select(Coordinates(machine=machine))):
        yield (
            "<p>Older runs do not record on which start of a machine they ran. Each of them counts as a start of its "
            "own, and is named by its date.</p>"
        )
    if gpu:
        yield _figure(known, store.machines[machine])
    within = f"within {units.text(WITHIN, '%', exact=True)}"
    head = ("case", "machines", "GPU pairs", within, "median", "worst", "host rows", "with a range", "worst host pair")
    yield table(head, (("", _cells(case)) for case in known))
    if worst := sorted((pair for pair in gpu if not pair.agrees), key=lambda pair: pair.off, reverse=True):
        yield f"### Furthest apart {{ #{machine}-worst }}"
        yield _listed(worst)


def _verdict(known: list[Case], gpu: list[Again]) -> str:
    """Whether the goal is reached, in words."""
    agreeing = sum(pair.agrees for pair in gpu)
    hosts, ranges = sum(len(case.hosts) for case in known), [times for case in known for times in case.ranges]
    once = [case.name for case in known if not case.gpu and not case.calls]
    reached = bool(gpu) and agreeing == len(gpu) and len(ranges) == hosts and not once
    parts = [f"<strong>The goal is {'' if reached else 'not '}reached.</strong>"]
    if gpu:
        share = units.text(agreeing / len(gpu), "%")
        within = units.text(WITHIN, "%", exact=True)
        parts.append(f"Of {len(gpu)} pairs of GPU rows, {agreeing} ({share}) agree within {within}.")
    if long := [pair.agrees for pair in gpu if min(pair.first.time.p50, pair.second.time.p50) >= LONG]:
        parts.append(
            f"Of those of {units.text(LONG, 's', exact=True)} and more, {units.text(sum(long) / len(long), '%')}."
        )
    if hosts:
        parts.append(f"Of {hosts} rows of calls, {len(ranges)} have a range over {RUNS} machines or more.")
    if ranges:
        parts.append(
            "To test whether a range predicts another machine, we leave out each run once: "
            f"{units.text(_foretold(ranges), '%')} of the runs lie in the range of the others, or within "
            f"{units.text(WITHIN, '%', exact=True)} of it."
        )
    if once:
        parts.append(f"Measured once: {len(once)} of {len(known)} cases.")
    return " ".join(parts)


def _foretold(ranges: list[list[float]]) -> float:
    """The share of runs that lie in the range of the others, or nearly."""
    left_out = [(time, times[:index] + times[index + 1 :]) for times in ranges for index, time in enumerate(times)]
    inside = [min(others) / (1 + WITHIN) <= time <= max(others) * (1 + WITHIN) for time, others in left_out]
    return sum(inside) / len(inside)


def _cells(case: Case) -> list[str]:
    name, starts = code(case.name), str(len(case.starts))
    if not case.gpu and not case.calls:
        return [name, "measured once", *["–"] * 7]
    agreeing = sum(pair.agrees for pair in case.gpu)
    return [
        name,
        starts,
        str(len(case.gpu)),
        units.text(agreeing / len(case.gpu), "%") if case.gpu else "–",
        units.text(statistics.median(pair.ratio for pair in case.gpu), "x") if case.gpu else "–",
        units.text(1 + max(pair.off for pair in case.gpu), "x") if case.gpu else "–",
        str(len(case.hosts)),
        str(len(case.ranges)),
        units.text(1 + max(pair.off for pair in case.calls), "x") if case.calls else "–",
    ]


def _listed(worst: list[Again]) -> str:
    """The rows that are furthest apart, with both numbers."""

    def cells(pair: Again) -> list[str]:
        row, unit = pair.first, {"time": "s", "rate_share": "%"}[pair.metric]
        both = zip(pair.values, (pair.first, pair.second), strict=True)
        values = [f"{units.text(value, unit)} ({_start(timed)})" for value, timed in both]
        variant = palette.label(row.variant, case=row.case)
        where = [code(row.case), f"{row.direction}, {row.mode}", units.size(row.size), variant]
        return [*where, *values, units.text(pair.ratio, "x")]

    head = ("case", "timed", "shape", "variant", "one machine", "another", "ratio")
    more = f"\n\n<p>And {len(worst) - WORST} more.</p>" if len(worst) > WORST else ""
    return table(head, (("", cells(pair)) for pair in worst[:WORST]), words=True) + more


# ---- the figure -----------------------------------------------------------------------------------------------------


def _figure(known: list[Case], machine: str) -> str:
    """A strip a case: each GPU row that was measured twice as a mark at its ratio. Drawn wide, and for a phone."""
    shown = [case for case in known if case.gpu]
    agreeing = sum(pair.agrees for case in shown for pair in case.gpu)
    count = sum(len(case.gpu) for case in shown)
    spoken = escape(f"Ratios of pairs of GPU rows on {machine}: {agreeing} of {count} inside the band")
    drawings = (
        f'<div class="rp-strips rp-strips--{size}" role="img" aria-label="{spoken}">{_drawn(shown, *pixels)}</div>'
        for size, pixels in SIZES.items()
    )
    caption = (
        "Each mark is the ratio of two runs of a GPU row, or of several with one ratio. In the band both "
        f"agree within {units.text(WITHIN, '%', exact=True)}; ratios beyond an end of the scale are drawn there."
    )
    return f'<figure class="rp-figure">{"".join(drawings)}<figcaption>{caption}</figcaption></figure>'


def _drawn(shown: list[Case], width: int, line: int) -> str:
    """Names stand before the strips; on a phone above them."""
    left = 200 if width > 500 else 8
    height = line * len(shown) + 34

    def x(ratio: float) -> float:
        """Logarithmic, so that faster and slower by as much are as far from one."""
        low, high = (math.log(end) for end in RATIOS)
        part = (min(max(math.log(ratio), low), high) - low) / (high - low)
        return round(left + part * (width - left - 24), 1)

    low, high = x(1 / (1 + WITHIN)), x(1 + WITHIN)
    parts = [
        f'<rect x="{low}" y="0" width="{high - low:.1f}" height="{height - 26}" fill="var(--rp-line)" opacity="0.6"/>',
        f'<path d="M{x(1)} 0V{height - 26}" stroke="var(--rp-ink-soft)" stroke-dasharray="3 3"/>',
    ]
    for index, case in enumerate(shown):
        middle = line * index + (line / 2 if left > 8 else line - 14)
        text = (left - 12, middle + 4.5, "end") if left > 8 else (0, middle - 14, "start")
        parts.append(f'<text x="{text[0]}" y="{text[1]}" text-anchor="{text[2]}">{escape(case.name)}</text>')
        for agrees, colour in ((True, "ink"), (False, "accent")):
            at = {round(2 * x(pair.ratio)) / 2 for pair in case.gpu if pair.agrees is agrees}
            parts.append(_marks(sorted(at), middle, colour))
    anchors = {RATIOS[0]: "start", 1 / (1 + WITHIN): "middle", 1 + WITHIN: "middle", RATIOS[1]: "end"}
    for ratio, anchor in anchors.items():
        parts.append(f'<text x="{x(ratio)}" y="{height - 8}" text-anchor="{anchor}">{units.text(ratio, "x")}</text>')
    return (
        f'<svg aria-hidden="true" viewBox="0 0 {width} {height}" font-size="13" fill="var(--rp-ink)" '
        f'style="max-width: {width}px">{"".join(parts)}</svg>'
    )


def _marks(at: list[float], middle: float, colour: str) -> str:
    """All of a strip in one path: there are tens of thousands of pairs."""
    lines = "".join(f"M{x} {middle - 6}v12" for x in at)
    return f'<path d="{lines}" stroke="var(--rp-{colour})" stroke-width="1.5" opacity="0.55"/>' if at else ""
