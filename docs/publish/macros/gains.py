"""What kernels gain over what a reader would use otherwise: alone, inside a compiled block, and the verdict of both.

A kernel's own page shows the shapes that it names. kernels/index has all kernels beside each other, each at the shape
that its page calls typical in its front matter, and at its worst one, which nobody chooses.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

from docs.publish import evidence, markup, palette, units
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Evidence
from docs.publish.macros.claims import LEVEL
from docs.publish.markdown import pages
from docs.publish.place import kernel_files
from docs.publish.records.measured import DIRECTIONS, MODES, Coordinates, Measured
from docs.publish.records.store import Store

ALONE = "device"  # GPU time: the host has no part in it
PYTORCH = ("eager", "compile", "compile-max")  # a column each; the best library has the next one
EVERYWHERE, NOWHERE = "faster at every size", "no difference"
WHAT = ("verdicts", "typical", "worst", "block")
FORMULA = re.compile(r'\A(?:#.*\n)*"""(?:.*\n)+?\n(?P<lines>(?: {4}.*\n)+)')


@dataclass(frozen=True)
class Point:
    """A direction and a shape at which ours was timed, with the other sides beside it."""

    ours: Measured
    others: dict[str, Measured]

    @property
    def best(self) -> Measured:
        """The fastest other side."""
        return min(self.others.values(), key=_time)

    @property
    def peer(self) -> Measured | None:
        """The fastest side that is neither PyTorch nor its compiler."""
        return min((row for name, row in self.others.items() if name not in PYTORCH), key=_time, default=None)

    @property
    def in_block(self) -> bool:
        """Whether ours stands in a block that is compiled as a whole, rather than alone."""
        return {"tokens", "width"} <= self.ours.row.shape.keys()

    @property
    def kind(self) -> tuple[str, ...]:
        """What runs, and the names of its sizes."""
        return self.ours.row.part, *self.ours.row.shape

    def over(self, variant: str) -> float:
        """How many times as fast as another side ours is."""
        return _time(self.others[variant]) / _time(self.ours)


def of_one(store: Store, page: Evidence, case: str, shapes: list[str]) -> str:
    """The gains of a case at some shapes and inside the compiled block, as HTML.

    Raises:
        PublishError: the case was not measured, or not at one of the shapes.
    """
    known = points(store, case)
    if not known:
        raise unknown("gains: case", case, dict.fromkeys(row.case for row in store.select()))
    shown = [point for shape in shapes for point in _at(known, shape)] + [point for point in known if point.in_block]
    return _panel([(_where(point), point) for point in shown], page)


def of_all(store: Store, page: Evidence, root: Path, what: str) -> str:
    """All kernels with records beside each other, as HTML.

    Args:
        what: "verdicts", or the gains at the "typical" shape, at the "worst" point, or in the compiled "block".

    Raises:
        PublishError: `what` is nothing of these; a kernel's page names no typical shape, or one that was not timed.
    """
    if what not in WHAT:
        raise unknown("kernels", what, WHAT)
    verdicts, gains = [], []
    for name in kernel_files(root):
        slug = name.replace("_", "-")
        known = points(store, f"kernels/{slug}")
        if not known:
            continue  # it waits for somebody with the GPU
        alone = [point for point in known if not point.in_block]
        title, shape = typical(root, f"kernels/{slug}")
        usual = _at(alone, shape)
        link = markup.link(title, page.place.to(f"kernels/{slug}/"))
        formula = "".join(f"<br>{markup.code(line)}" for line in _formula(root, name))
        cells = [f"<span>{escape(words)}</span>" for words in verdict(usual[0], known)]
        verdicts.append(("", [f"{link}{formula}", *cells]))
        worst = min(alone, key=lambda point: point.over(point.best.variant))
        chosen = {"typical": usual, "worst": [worst], "block": [point for point in known if point.in_block]}
        gains += [(f"{link}, {_where(point)}", point) for point in chosen.get(what, [])]
    if what != "verdicts":
        return _panel(gains, page)
    head = ("", "in eager code", "in a compiled block", "compiled, with nothing to fuse")
    return markup.table(head, verdicts, words=True, stacked=True)


def points(store: Store, case: str) -> list[Point]:
    """The points of a case on the published machine at which ours and another side have a GPU time."""
    machine = next(iter(store.machines))
    beside: dict[tuple[str, str, str], dict[str, Measured]] = {}
    for row in store.select(Coordinates(case, mode=ALONE, machine=machine)):
        beside.setdefault((row.size, row.direction, row.dtype), {})[row.variant] = row
    timed = ((sides.pop("ours", None), sides) for sides in beside.values())
    return [Point(ours, others) for ours, others in timed if ours and others]


def verdict(usual: Point, known: Iterable[Point]) -> tuple[str, str, str]:
    """When to use a kernel, and at which sizes: in eager code, in a compiled block, and compiled with nothing to fuse.

    Inputs of another kind than the typical ones, such as two losses in turns, are left to the kernel's page.
    """
    known = list(known)
    alike = sorted((point for point in known if point.kind == usual.kind), key=_length)
    behind = [
        f"{_direction(point)} at {_lengths([point])}, {palette.label(point.peer.variant, short=True)} is faster."
        for point in alike
        if point.peer and _slower(point, point.peer.variant)
    ]
    eager = " ".join([_alone(alike, "PyTorch's operation", "eager"), *behind])
    return eager, _in_blocks(known), _alone(alike, "the compiled operation", "compile", "compile-max")


def _alone(points: list[Point], other: str, *sides: str) -> str:
    """At which sizes a kernel is faster than some sides: one sentence where all directions agree."""
    points = [point for point in points if point.others.keys() & {*sides}]
    if not points:
        return "Not timed."
    said = {}
    for direction in dict.fromkeys(_direction(point) for point in points):
        said[direction] = _reach([point for point in points if _direction(point) == direction], sides)
    words = set(said.values())
    if words == {EVERYWHERE}:
        return f"Use it: faster than {other} at {_lengths(points[:1] + points[-1:], ' to ')}."
    if words == {NOWHERE}:
        return f"No difference: {other} is as fast at {_lengths(points[:1] + points[-1:], ' to ')}."
    return " ".join(f"{direction}: {each}." for direction, each in said.items())


def _reach(points: list[Point], sides: tuple[str, ...]) -> str:
    """At which sizes of one direction a kernel is faster than every one of some sides, and at which slower than one."""
    faster = [point for point in points if all(_faster(point, side) for side in sides if side in point.others)]
    slower = [point for point in points if any(_slower(point, side) for side in sides if side in point.others)]
    if faster == points:
        return EVERYWHERE
    words = [f"slower at {_lengths(slower)}"] if slower else []
    if len(faster) > 1 and faster == points[-len(faster) :]:
        words.insert(0, f"faster from {_lengths(faster[:1])} on")
    elif faster:
        words.insert(0, f"faster at {_lengths(faster)}")
    return ", ".join([*words, f"else {NOWHERE}"] if words else [NOWHERE])


def _in_blocks(known: list[Point]) -> str:
    """What a kernel does to a whole step of each compiled block that was timed with it."""
    found: dict[str, list[str]] = {}
    for point in known:
        if point.in_block and point.ours.direction == "both" and "compile" in point.others:
            words = "No difference to a step"
            if _faster(point, "compile"):
                words = "Use it: a step is faster"
            elif _slower(point, "compile"):
                words = "Use PyTorch's operation: a step is slower with the kernel"
            found.setdefault(words, []).append(units.size(point.ours.size).replace(" ", "\N{NO-BREAK SPACE}"))
    said = [f"{words} at {' and '.join(sizes)}." for words, sizes in found.items()]
    return " ".join(said) or "No compiled block was timed with it."


def _faster(point: Point, side: str) -> bool:
    return point.over(side) > 1 + LEVEL


def _slower(point: Point, side: str) -> bool:
    return point.over(side) * (1 + LEVEL) < 1


def _direction(point: Point) -> str:
    return DIRECTIONS[point.ours.direction].capitalize()


def _length(point: Point) -> int:
    return list(point.ours.row.shape.values())[-1]


def _lengths(points: list[Point], between: str = " and ") -> str:
    """The last number of each shape, of which verdicts depend: "9000 and 131072 columns", "head_dim 80"."""
    numbers = [str(number) for number in dict.fromkeys(map(_length, points))]
    words = between.join(numbers) if len(numbers) < 3 else f"{', '.join(numbers[:-1])}{between}{numbers[-1]}"
    name = list(points[0].ours.row.shape)[-1]
    return f"{words}\N{NO-BREAK SPACE}{name}" if name.endswith("s") else f"{name}\N{NO-BREAK SPACE}{words}"


def _panel(known: list[tuple[str, Point]], page: Evidence) -> str:
    """A table of gains: a line for each point, a column for each other side that is anywhere."""
    pytorch = [name for name in PYTORCH if any(name in point.others for _, point in known)]
    peers = ["best library"] if any(point.peer for _, point in known) else []
    head = ["ours over", *(palette.label(name, short=True) for name in pytorch), *peers]
    rows = [("", [line, *_cells(point, pytorch, bool(peers), page)]) for line, point in known]
    records = [point.ours.record for _, point in known]
    panel = markup.panel(
        what="Speedup of ours over each of the others; below one, the other is faster. "
        f"{known[0][1].ours.dtype}, {MODES[ALONE]}",
        body=markup.table(head, rows),
        source=f"{escape(records[0].machine['name'])}, {evidence.days(records)}.",
    )
    return markup.panels([panel], "wide")


def _cells(point: Point, pytorch: list[str], peers: bool, page: Evidence) -> list[str]:
    def shown(variant: str) -> str:
        return page.cell(point.ours if variant in point.others else None, "speedup", variant)

    peer = point.peer.variant if point.peer else ""
    named = f"{escape(palette.label(peer, short=True))} {shown(peer)}" if peer else markup.NONE
    return [*map(shown, pytorch), *([named] if peers else [])]


def _at(known: list[Point], shape: str) -> list[Point]:
    """Raises: PublishError: no such shape was timed."""
    if found := [point for point in known if point.ours.size == shape]:
        return found
    sizes = dict.fromkeys(point.ours.size for point in known)
    raise unknown("gains: shape", shape, sizes)


def _where(point: Point) -> str:
    place = "compiled block of " * point.in_block + units.size(point.ours.size)
    return markup.unbroken(f"{DIRECTIONS[point.ours.direction]}, {place}").replace("of&nbsp;", "of ")


def _time(row: Measured) -> float:
    return row.time.p50


def typical(root: Path, case: str) -> tuple[str, str]:
    """The title of a kernel's page, and the shape that it calls typical.

    Raises:
        PublishError: it names none.
    """
    path = f"{case}.md"
    said = pages.front_matter((root / "docs" / "pages" / path).read_text(encoding="utf-8"))
    if "typical" not in said:
        raise PublishError(f'{path}: expected a line "typical: 32768x4096" in the front matter, got none')
    return said.get("title", case), said["typical"]


def _formula(root: Path, name: str) -> list[str]:
    """What a kernel computes, as the docstring of its file has it: its indented lines, without the remarks behind."""
    found = FORMULA.match(kernel_files(root)[name].read_text(encoding="utf-8"))
    lines = found["lines"].splitlines() if found else []
    return [re.split(" {4,}", line.strip())[0] for line in lines]
