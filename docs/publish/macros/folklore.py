"""Wrong beliefs, with a verdict computed from records: each stands in the front matter of the page that disproves it.

    folklore:
      - id: one-kernel                      # the anchor on the page, where {{ folklore("one-kernel") }} shows the entry
        belief: Fewer kernels are faster.   # as people say it
        faster: script                      # what would have to hold: a relation of claims.py, with a variant,
        than: eager                         # and another variant; after "level" it is "with: eager"
        shapes: [gated 16384x4096]          # or words for each: {gated 16384x4096: the gate of an MLP}
        case: compiler/torchscript          # the page's own where it is not given
        direction: forward
        mode: device
        machine: amd-epyc-2-cores           # the first published one where it is not given
        because: The one kernel moves its bytes slowly.

In the place of shapes there may be comparisons of any two numbers, each with words for where it is. What comparisons
or their two sides share is said once, further out:

        metric: kernels                     # of a measured number; "time" where it is not given
        less: compile                       # a variant, or what else this side is: {variant: compile, shape: 8x4}
        than: eager
        comparisons:
          - {where: few rows, shape: 8x4}
          - {where: many rows, shape: 64x4, than: {variant: eager, shape: 64x8}}

A side may also be a number that a script printed:

        output: shapes                      # a section that the page's own script printed
        of: patterns/memory                 # or that another did
        comparisons:
          - {where: behind a view, which: 2, less: {line: flat}, than: {line: [a table, whole]}}

reference/folklore shows the entries of all pages.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from docs.publish import evidence, markup, palette, units
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Evidence, Quantity
from docs.publish.macros import claims, numbers
from docs.publish.markdown import pages
from docs.publish.place import Place
from docs.publish.records.asked import script_of
from docs.publish.records.measured import DIRECTIONS, MODES, Coordinates
from docs.publish.records.store import Store

NEEDED = {"id", "belief", "because"}
OF_VARIANTS = {"shapes", "direction", "mode"}  # needed, too, where an entry has no comparisons
# What a measured number may be named by, and one that a script printed.
MEASURED = {"case", "variant", "metric", "shape", "direction", "mode", "machine"}
PRINTED = {"output", "of", "line", "which"}
COMPARED = {*claims.RELATIONS, "than", "with", *MEASURED, *PRINTED}
FEW = 3  # shapes that make a verdict
KEYS = {*NEEDED, *OF_VARIANTS, *COMPARED, "comparisons", "margin"}
Words = Mapping[str, Any]  # of front matter


@dataclass(frozen=True)
class Entry:
    """A belief, as the front matter of a page has it.

    Attributes:
        page: its path, "compiler/torchscript.md".
    """

    page: str
    words: Words

    @property
    def anchor(self) -> str:
        return str(self.words["id"])

    @property
    def case(self) -> str:
        return str(self.words.get("case", self.page.removesuffix(".md")))


@dataclass(frozen=True)
class Tested:
    """A belief at one point: whether it holds there, where that is, and the numbers, as HTML.

    Attributes:
        about: what the numbers of all points are, and what all points share; empty where each says that itself.
    """

    holds: bool
    where: str
    shown: str
    about: tuple[str, str] = ("", "")


def entries(root: Path) -> list[Entry]:
    """The beliefs of all pages, in the order of their paths.

    Raises:
        PublishError: an entry lacks something, or has something unknown; two have one anchor.
    """
    found: list[Entry] = []
    for page, said in pages.front_matters(root).items():
        for words in said.get("folklore", ()):
            needed = NEEDED | (set() if "comparisons" in words else OF_VARIANTS)
            if missing := needed - words.keys():
                raise PublishError(f"{page}: folklore {words.get('id')!r}: expected {', '.join(sorted(missing))}, too")
            if extra := words.keys() - KEYS:
                raise PublishError(f"{page}: folklore {words['id']!r}: unknown {', '.join(sorted(extra))}")
            found.append(Entry(page, words))
    anchors = [entry.anchor for entry in found]
    if twice := {anchor for anchor in anchors if anchors.count(anchor) > 1}:
        raise PublishError(f"folklore: two entries have the id {twice.pop()!r}")
    return found


def of_page(store: Store, page: Evidence, root: Path, anchor: str, macros: Mapping[str, Callable]) -> str:
    """One belief with its verdict, where its page disproves it, as HTML.

    Raises:
        PublishError: the page has no such entry, or something that the entry names was not measured.
    """
    known = {entry.anchor: entry for entry in entries(root) if entry.page == page.place.path}
    if anchor not in known:
        raise unknown("folklore: id", anchor, known)
    return _block(known[anchor], store, page, macros)


def of_all(store: Store, page: Evidence, root: Path, macros: Mapping[str, Callable]) -> str:
    """All beliefs with verdict, numbers, reason, and the place that has more, as HTML."""
    said = pages.front_matters(root)
    blocks = []
    for entry in entries(root):
        href = f"{page.place.to(entry.page.removesuffix('.md') + '/')}#{entry.anchor}"
        about = said[entry.page]
        own = store.of(str(about.get("measured_on", "")))
        blocks.append(_block(entry, own, page, macros, markup.link(str(about["title"]), href)))
    return "\n".join(blocks)


def _block(entry: Entry, store: Store, page: Evidence, macros: Mapping[str, Callable], link: str = "") -> str:
    tested = _tested(entry, store, page, macros)
    what = "point" if "comparisons" in entry.words else "shape"
    more = f" More: {link}." if link else ""
    says = f"{_measured(tested)} {escape(str(entry.words['because']))}{more}"
    return (
        f'<aside class="rp-folklore" id="{escape(entry.anchor)}">'
        f"<p><strong>Folklore:</strong> “{escape(str(entry.words['belief']).strip())}”</p>"
        f"<p><strong>{verdict(tested, what)}.</strong> {says}</p></aside>"
    )


def verdict(tested: list[Tested], what: str = "shape") -> str:
    """In a word: "Wrong" where it holds nowhere, "True" where it holds everywhere. Fewer than `FEW` are no verdict."""
    held, all_ = sum(one.holds for one in tested), len(tested)
    if 0 < held < all_:
        return f"Not always: true at {held} of {all_}"
    where = "" if all_ >= FEW else f" at this {what}" if all_ == 1 else f" at both {what}s"
    return ("True" if held else "Wrong") + where


def _tested(entry: Entry, store: Store, page: Evidence, macros: Mapping[str, Callable]) -> list[Tested]:
    try:
        if "comparisons" in entry.words:
            return [_compared(entry, one, store, page, macros) for one in entry.words["comparisons"]]
        return _at_shapes(entry, store, page)
    except (PublishError, ValueError, TypeError) as error:
        raise PublishError(f"{entry.page}: folklore {entry.anchor!r}: {error}") from error


def _at_shapes(entry: Entry, store: Store, page: Evidence) -> list[Tested]:
    """Of two variants, at some shapes."""
    words = entry.words
    side, relation, other = _relation(words)
    given = words["shapes"]
    shapes = given if isinstance(given, dict) else {shape: units.size(shape) for shape in given}
    shared = {key: words[key] for key in ("direction", "mode", "machine") if key in words}
    found = []
    for shape, where in shapes.items():
        at = Coordinates(entry.case, shape=shape, **shared)
        against = claims.verdict(store, at, side, relation, [other], margin=words.get("margin")).against
        row = store.find(Coordinates(**{**at.fixed(), "variant": side}))
        speedup = evidence.of_row(row, "speedup", other, page.place)
        assert speedup is not None  # the other was timed beside it
        ours, theirs = (escape(palette.label(name, case=entry.case)) for name in (side, other))
        about = f"Speedup of “{ours}” over “{theirs}”: "
        everywhere = f"; {DIRECTIONS[row.direction]}, {row.dtype}, {MODES[row.mode]}"
        found.append(Tested(not against, str(where), page.show(speedup), (about, everywhere)))
    return found


def _compared(entry: Entry, own: Words, store: Store, page: Evidence, macros: Mapping[str, Callable]) -> Tested:
    """Of two numbers of any kind."""
    if extra := own.keys() - COMPARED - {"where"}:
        raise PublishError(f"comparisons: unknown {', '.join(sorted(extra))}")
    if "where" not in own:
        raise PublishError(f"comparisons: expected where each is, got {dict(own)}")
    words = {**entry.words, **own}
    side, relation, other = _relation(words)
    shared = {"case": entry.case, "of": script_of(entry.page)} | {
        key: words[key] for key in MEASURED | PRINTED if key in words
    }
    first, second = (_number(shared, one, store, page.place, macros) for one in (side, other))
    against = claims.verdict(store, Coordinates(), first, relation, [second], margin=words.get("margin")).against
    return Tested(not against, str(words["where"]), f"{page.show(first)} and {page.show(second)}")


def _relation(words: Words) -> tuple[Any, str, Any]:
    """One side, the relation that it would have to bear to the other, and the other.

    Raises:
        PublishError: there is not one relation with two sides.
    """
    named = [key for key in words if key in claims.RELATIONS]
    others = [words[key] for key in ("than", "with") if key in words]
    if len(named) != 1 or len(others) != 1:
        raise PublishError(
            f"expected one of {', '.join(claims.RELATIONS)}, and what it is than or with; got {[*words]}"
        )
    return words[named[0]], named[0], others[0]


def _number(shared: Words, own: str | Words, store: Store, place: Place, macros: Mapping[str, Callable]) -> Quantity:
    """A side of a comparison: a variant, or what it does not share with the other."""
    mine: Words = {"variant": own} if isinstance(own, str) else own
    if extra := mine.keys() - MEASURED - PRINTED:
        raise PublishError(f"comparisons: unknown {', '.join(sorted(extra))}")
    words = {**shared, **mine}
    if "output" in words:
        lines = words["line"] if isinstance(words["line"], list) else [words["line"]]
        return macros["captured"](
            words["output"], *map(str, lines), which=words.get("which", 1), of=words["of"]
        ).quantity
    where = {key: words[key] for key in MEASURED - {"metric"} if key in words}
    return numbers.measured(store, place, Coordinates(**where), words.get("metric", "time"))


def _measured(tested: list[Tested]) -> str:
    """The numbers, each with where it is; what they are, and what all points share, is said once."""
    before, after = tested[0].about
    return f"{before}{', '.join(f'{one.shown} ({escape(one.where)})' for one in tested)}{escape(after)}."
