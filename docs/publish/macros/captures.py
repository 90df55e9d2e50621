"""What a script printed as a fenced block, with a line that says where it comes from; and single numbers of it."""

import itertools
import re
from collections import Counter

from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Evidence, Quantity, of_run
from docs.publish.place import Place
from docs.publish.records.captures import Capture, Captures
from docs.publish.records.staleness import CODE
from tests.benchmarks.captures import fitted

SCALES = {  # as scripts print a unit: what it is worth, in which family of units.py
    "ns": (1e-9, "s"), "us": (1e-6, "s"), "µs": (1e-6, "s"), "ms": (1e-3, "s"), "s": (1.0, "s"),
    "KB": (1e3, "B"), "MB": (1e6, "B"), "GB": (1e9, "B"), "KiB": (2**10, "B"), "MiB": (2**20, "B"), "GiB": (2**30, "B"),
    "TFLOP/s": (1e12, "FLOP/s"), "%": (1e-2, "%"), "x": (1.0, "x"),
}  # fmt: skip
LANE = re.compile(r'\{"name": "(.+)",')  # how a lane begins: see snippets/validation/profiling_timeline.py
CELL = re.compile(r"\S+(?: \S+)*")
PRINTED = re.compile(rf"(?<![\w.])(-?\d+(?:,\d{{3}})*(?:\.\d+)?(?:e[-+]\d+)?) ?({'|'.join(SCALES)})?(?!\w|\.\d)")


def show(
    captures: Captures, capture: Capture, page: Evidence, lines: str = "", columns: bool = False, language: str = "text"
) -> str:
    """A capture as Markdown: a fenced block, and a line with its provenance.

    Args:
        lines: "1-20": only these lines; "1-20,30-40": both.
        language: for highlighting.
        columns: it is a table in which a name is longer than its column; all columns are made wide enough.

    Raises:
        PublishError: the capture does not have these lines.
    """
    content = picked(capture, lines)
    content = in_columns(content) if columns else content
    fence = "`" * max(3, 1 + max((len(line) - len(line.lstrip("`")) for line in content.splitlines()), default=0))
    return f"{fence}{language}\n{content}\n{fence}\n\n{provenance(captures, capture, page)}"


def provenance(captures: Captures, capture: Capture, page: Evidence) -> str:
    """The line that says where a capture comes from, with a badge if the code has changed since."""
    stale = captures.is_stale(capture)
    if stale:
        page.stale.append(f"output of {capture.name}")
    run = capture.run
    version = ", ".join(f"{name} {run.software[name]}" for name in ("torch", "triton") if name in run.software)
    source = page.place.source(capture.file, run.commit)
    badge = ' <small class="rp-badge">stale</small>' if stale else ""
    return (
        f'<p class="rp-provenance">Printed by <a href="{source}"><code>{run.command}</code></a> '
        f"on {run.machine['name']}, "
        f'{version}, {run.date[:10]} (<a href="{page.place.source(capture.record)}">record</a>).{badge}</p>\n'
    )


def picked(capture: Capture, lines: str) -> str:
    """The lines that are asked for, all if none."""
    every = fitted(capture.content.rstrip("\n"))
    if not lines:
        return "\n".join(every)
    chosen: list[str] = []
    for part in lines.split(","):
        first, _, last = part.strip().partition("-")
        try:
            begin, end = int(first), int(last or first)
        except ValueError as error:
            raise PublishError(
                f'output of {capture.name}: lines: expected "1-20" or "1-20,30-40", got {lines!r}'
            ) from error
        if not 1 <= begin <= end <= len(every):
            raise PublishError(
                f"output of {capture.name}: lines: expected between 1 and {len(every)}, got {part.strip()!r}"
            )
        chosen += every[begin - 1 : end]
    return "\n".join(chosen)


def in_columns(table: str) -> str:
    """A table with its cells below each other, names on the left; lines that are no row of it stay as they are.

    Cells are two spaces apart at least. A row begins without a space, and has as many cells as most rows have.
    """
    every = table.splitlines()
    rows = {at: CELL.findall(line) for at, line in enumerate(every) if line[:1].strip()}
    usual = Counter(map(len, rows.values())).most_common(1)[0][0]
    rows = {at: cells for at, cells in rows.items() if len(cells) == usual}
    first, *others = (max(map(len, column)) for column in zip(*rows.values(), strict=True))
    for at, (name, *cells) in rows.items():
        every[at] = f"{name:<{first}}" + "".join(
            f"{cell:>{width + 2}}" for cell, width in zip(cells, others, strict=True)
        )
    return "\n".join(every)


def number(captures: Captures, capture: Capture, place: Place, labels: list[str], which: int) -> Quantity:
    """A number that a script printed, with the run behind it.

    Args:
        labels: how the line begins; of several, each is looked for below the one before, up to an empty line, so that
            a name that one part of a table lacks is not found in the next. The last is the number's line.
        which: the number's place among those that follow the label, from 1.

    Raises:
        PublishError: no line is named, the capture has no such lines, or the line not so many numbers.
    """
    if not labels:
        raise PublishError(f"output of {capture.name}: expected how the number's line begins, got nothing")
    rest = capture.content.splitlines()
    for label in labels:
        begins = re.compile(rf"\s*{re.escape(label)}(?!\S)")
        at = next((at for at, line in enumerate(rest) if begins.match(line)), None)
        if at is None:
            raise unknown(f"output of {capture.name}: line", label, filter(None, map(str.strip, rest)))
        line = rest[at]
        rest = list(itertools.takewhile(str.strip, rest[at + 1 :]))
    printed = PRINTED.findall(begins.sub("", line, count=1))
    if not 1 <= which <= len(printed):
        raise PublishError(
            f"output of {capture.name}: {line.strip()!r}: expected number 1 to {len(printed)}, got {which}"
        )
    digits, unit = printed[which - 1]
    scale, family = SCALES.get(unit, (1.0, ""))
    record = place.source(capture.record)
    named = [LANE.sub(r"\1", label) for label in labels]
    entry = {
        "label": f"Number {which} of {' / '.join(named)}, printed by {capture.file}",
        "value": f"{digits} {unit.replace('us', 'µs')}".strip(),
        **of_run(capture.run),
        "download_url": record,
        "source_url": place.source(capture.file, capture.run.commit),
        "stale": CODE if captures.is_stale(capture) else "",
    }
    return Quantity(float(digits.replace(",", "")) * scale, family, entry, record)
