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
from docs.publish.place import Place, kernel_files
from docs.publish.records.measured import DIRECTIONS, MODES, Coordinates, Measured
from docs.publish.records.store import Store

ALONE = "device"  # GPU time: the host has no part in it
PYTORCH = ("eager", "compile", "compile-max")  # a column each; the best peer has the next one
META = re.compile(r"^(title|typical): *(.+)$", re.M)
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

    def over(self, variant: str) -> float:
        """How many times as fast as another side ours is."""
        return _time(self.others[variant]) / _time(self.ours)


def of_one(store: Store, place: Place, page: Evidence, case: str, shapes: list[str]) -> str:
    """The gains of a case at some shapes and inside the compiled block, as HTML.

    Raises:
        PublishError: the case was not measured, or not at one of the shapes.
    """
    known = points(store, case)
    if not known:
        raise unknown("gains: case", case, dict.fromkeys(row.case for row in store.select()))
    shown = [point for shape in shapes for point in _at(known, shape)] + [point for point in known if point.in_block]
    return _panel([(_where(point), point) for point in shown], place, page)


def of_all(store: Store, place: Place, page: Evidence, root: Path, what: str) -> str:
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
        link = markup.link(title, place.to(f"kernels/{slug}/"))
        formula = "<br>".join(map(markup.code, _formula(root, name)))
        verdicts.append(("", [link, formula, escape(_shapes(usual[0], alone)), verdict(usual, known)]))
        worst = min(alone, key=lambda point: point.over(point.best.variant))
        chosen = {"typical": usual, "worst": [worst], "block": [point for point in known if point.in_block]}
        gains += [(f"{link}, {_where(point)}", point) for point in chosen.get(what, [])]
    if what != "verdicts":
        return _panel(gains, place, page)
    return markup.table(("", "what it computes", "timed at", "verdict"), verdicts, words=True, remark=True)


def points(store: Store, case: str) -> list[Point]:
    """The points of a case on the published machine at which ours and another side have a GPU time."""
    machine = next(iter(store.machines))
    beside: dict[tuple[str, str, str], dict[str, Measured]] = {}
    for row in store.select(Coordinates(case, mode=ALONE, machine=machine)):
        beside.setdefault((row.size, row.direction, row.dtype), {})[row.variant] = row
    timed = ((sides.pop("ours", None), sides) for sides in beside.values())
    return [Point(ours, others) for ours, others in timed if ours and others]


def verdict(usual: Iterable[Point], known: Iterable[Point]) -> str:
    """When to use a kernel, as its gains say: alone against eager code, and in a whole step of the compiled block."""
    if any(point.over("eager") <= 1 + LEVEL for point in usual if "eager" in point.others):
        return "PyTorch's own operation is as fast."
    steps = [point for point in known if point.in_block and point.ours.direction == "both"]
    gains = [point.over("compile") for point in steps if "compile" in point.others]
    if not gains:
        return "Use it in eager code. No compiled block was timed with it."
    if min(gains) > 1 + LEVEL:
        return "Use it, in eager and in compiled code."
    if max(gains) * (1 + LEVEL) < 1:
        return "Use it in eager code. In compiled code, use PyTorch's operation."
    return "Use it in eager code. In a compiled block it makes no difference."


def _panel(known: list[tuple[str, Point]], place: Place, page: Evidence) -> str:
    """A table of gains: a line for each point, a column for each other side that is anywhere."""
    pytorch = [name for name in PYTORCH if any(name in point.others for _, point in known)]
    peers = ["best peer"] if any(point.peer for _, point in known) else []
    head = ["ours over", *(palette.label(name, short=True) for name in pytorch), *peers]
    rows = [("", [line, *_cells(point, pytorch, bool(peers), place, page)]) for line, point in known]
    records = [point.ours.record for _, point in known]
    panel = markup.panel(
        what="Speedup of ours over each of the others; below one, the other is faster. "
        f"{known[0][1].ours.dtype}, {MODES[ALONE]}",
        body=markup.table(head, rows),
        source=f"{escape(records[0].machine['name'])}, {evidence.days(records)}.",
    )
    return markup.panels([panel], "wide")


def _cells(point: Point, pytorch: list[str], peers: bool, place: Place, page: Evidence) -> list[str]:
    def shown(variant: str) -> str:
        quantity = evidence.of_row(point.ours, "speedup", variant, place) if variant in point.others else None
        return page.show(quantity) if quantity else markup.NONE

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
    return (
        escape(f"{DIRECTIONS[point.ours.direction]}, {place}")
        .replace(" ", "&nbsp;")
        .replace(",&nbsp;", ", ")
        .replace("of&nbsp;", "of ")
    )


def _time(row: Measured) -> float:
    return row.time.p50


def _shapes(typical: Point, known: list[Point]) -> str:
    """What a shape consists of, and how far its last number goes: "rows × columns, columns 1024 to 131072"."""
    dimensions = list(typical.ours.row.shape)
    alike = (point.ours.row.shape for point in known if list(point.ours.row.shape) == dimensions)
    lengths = [shape[dimensions[-1]] for shape in alike]
    return f"{' × '.join(dimensions)}, {dimensions[-1]} {min(lengths)} to {max(lengths)}"


def typical(root: Path, case: str) -> tuple[str, str]:
    """The title of a kernel's page, and the shape that it calls typical.

    Raises:
        PublishError: it names none.
    """
    path = f"{case}.md"
    meta = dict(META.findall((root / "docs" / "pages" / path).read_text(encoding="utf-8").split("\n---\n")[0]))
    if "typical" not in meta:
        raise PublishError(f'{path}: expected a line "typical: 32768x4096" in the front matter, got none')
    return meta.get("title", case), meta["typical"]


def _formula(root: Path, name: str) -> list[str]:
    """What a kernel computes, as the docstring of its file has it: its indented lines, without the remarks behind."""
    found = FORMULA.match(kernel_files(root)[name].read_text(encoding="utf-8"))
    lines = found["lines"].splitlines() if found else []
    return [re.split(" {4,}", line.strip())[0] for line in lines]
