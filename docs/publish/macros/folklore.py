"""Wrong beliefs, with a verdict computed from records: each stands in the front matter of the page that disproves it.

    folklore:
      - id: one-kernel                      # the anchor on the page, where {{ folklore("one-kernel") }} shows the entry
        belief: Fewer kernels are faster.   # as people say it
        claim: [script, faster, eager]      # what would have to hold, see claims.py
        case: compiler/torchscript          # the page's own where it is not given
        shapes: [2x16384x4096]              # or words for each: {2x16384x4096: the gate of an MLP}
        direction: forward
        mode: device
        because: The one kernel moves its bytes slowly.

In the place of claim, case, shapes, direction and mode there may be numbers, each with what it is of:

        numbers: [[8 rows, 'captured_value("c", "mask", of="a/b")', less, 'captured_value("c", "none", of="a/b")']]

reference/folklore shows the entries of all pages.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import jinja2
import yaml  # type: ignore[import-untyped]

from docs.publish import evidence, markup, palette, units
from docs.publish.errors import PublishError, unknown
from docs.publish.evidence import Evidence, Quantity
from docs.publish.macros import claims
from docs.publish.place import Place
from docs.publish.records.measured import DIRECTIONS, MODES, Coordinates
from docs.publish.records.store import Store

KEYS = {"id", "belief", "claim", "case", "shapes", "direction", "mode", "numbers", "because", "margin"}
NEEDED = {"id", "belief", "because"}


@dataclass(frozen=True)
class Entry:
    """A belief, as the front matter of a page has it.

    Attributes:
        page: its path, "compiler/torchscript.md".
    """

    page: str
    words: Mapping[str, Any]

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
    pages = root / "docs" / "pages"
    found: list[Entry] = []
    for path in sorted(pages.rglob("*.md")):
        page, text = path.relative_to(pages).as_posix(), path.read_text(encoding="utf-8")
        if not text.startswith("---\n") or "\nfolklore:" not in text.partition("\n---\n")[0]:
            continue
        for words in _front_matter(text)["folklore"]:
            kind = {"numbers"} if "numbers" in words else {"claim", "shapes", "direction", "mode"}
            if missing := (NEEDED | kind) - words.keys():
                raise PublishError(f"{page}: folklore {words.get('id')!r}: expected {', '.join(sorted(missing))}, too")
            if extra := words.keys() - KEYS:
                raise PublishError(f"{page}: folklore {words['id']!r}: unknown {', '.join(sorted(extra))}")
            found.append(Entry(page, words))
    anchors = [entry.anchor for entry in found]
    if twice := {anchor for anchor in anchors if anchors.count(anchor) > 1}:
        raise PublishError(f"folklore: two entries have the id {twice.pop()!r}")
    return found


def of_page(store: Store, place: Place, page: Evidence, root: Path, anchor: str, macros: Mapping[str, Callable]) -> str:
    """One belief with its verdict, where its page disproves it, as HTML.

    Raises:
        PublishError: the page has no such entry, or something that the entry names was not measured.
    """
    known = {entry.anchor: entry for entry in entries(root) if entry.page == place.path}
    if anchor not in known:
        raise unknown("folklore: id", anchor, known)
    return _block(known[anchor], store, place, page, macros)


def of_all(store: Store, place: Place, page: Evidence, root: Path, macros: Mapping[str, Callable]) -> str:
    """All beliefs with verdict, numbers, reason, and the place that has more, as HTML."""
    blocks = []
    for entry in entries(root):
        href = f"{place.to(entry.page.removesuffix('.md') + '/')}#{entry.anchor}"
        blocks.append(_block(entry, store, place, page, macros, markup.link(_title(root, entry.page), href)))
    return "\n".join(blocks)


def _block(
    entry: Entry, store: Store, place: Place, page: Evidence, macros: Mapping[str, Callable], link: str = ""
) -> str:
    tested = _tested(entry, store, place, page, macros)
    more = f" More: {link}." if link else ""
    says = f"{_measured(tested)} {escape(str(entry.words['because']))}{more}"
    return (
        f'<aside class="rp-folklore" id="{escape(entry.anchor)}">'
        f"<p><strong>Folklore:</strong> “{escape(_belief(entry))}”</p>"
        f"<p><strong>{verdict(tested)}.</strong> {says}</p></aside>"
    )


def verdict(tested: list[Tested]) -> str:
    """In a word: "Wrong" where it holds nowhere, "True" where it holds everywhere."""
    held = sum(one.holds for one in tested)
    return "Wrong" if not held else "True" if held == len(tested) else f"Not always: true at {held} of {len(tested)}"


def _tested(entry: Entry, store: Store, place: Place, page: Evidence, macros: Mapping[str, Callable]) -> list[Tested]:
    words, margin = entry.words, entry.words.get("margin")
    try:
        if "numbers" in words:
            return [_of_numbers(store, page, macros, margin, *each) for each in words["numbers"]]
        side, relation, other = words["claim"]
        given = words["shapes"]
        shapes = given if isinstance(given, dict) else {shape: units.size(shape) for shape in given}
        found = []
        for shape, where in shapes.items():
            at = Coordinates(entry.case, direction=words["direction"], shape=shape, mode=words["mode"])
            against = claims.verdict(store, at, side, relation, [other], margin=margin).against
            row = store.find(Coordinates(**{**at.fixed(), "variant": side}))
            speedup = evidence.of_row(row, "speedup", other, place)
            assert speedup is not None  # the other was timed beside it
            names = [escape(palette.label(name, case=entry.case)) for name in (side, other)]
            about = f"How many times as fast {names[0]} is as {names[1]}: "
            shared = f"; {DIRECTIONS[row.direction]}, {row.dtype}, {MODES[row.mode]}"
            found.append(Tested(not against, str(where), page.show(speedup), (about, shared)))
        return found
    except (PublishError, jinja2.TemplateError, ValueError, TypeError) as error:
        raise PublishError(f"{entry.page}: folklore {entry.anchor!r}: {error}") from error


def _of_numbers(
    store: Store,
    page: Evidence,
    macros: Mapping[str, Callable],
    margin: float | None,
    where: str,
    one: str,
    relation: str,
    other: str,
) -> Tested:
    first, second = (_number(text, macros) for text in (one, other))
    found = claims.verdict(store, Coordinates(), first, relation, [second], margin=margin)
    return Tested(not found.against, where, f"{page.show(first)} and {page.show(second)}")


def _number(text: str, macros: Mapping[str, Callable]) -> Quantity:
    """What an expression gives, such as value(...) or captured_value(...)."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    found = environment.compile_expression(text, undefined_to_none=False)(**macros)
    if not isinstance(found, Quantity):
        raise PublishError(f"numbers: expected value(...) or captured_value(...), got {text!r}")
    return found


def _measured(tested: list[Tested]) -> str:
    """The numbers, each with where it is; what they are, and what all points share, is said once."""
    before, after = tested[0].about
    return f"{before}{', '.join(f'{one.shown} ({escape(one.where)})' for one in tested)}{escape(after)}."


def _belief(entry: Entry) -> str:
    return str(entry.words["belief"]).strip()


def _title(root: Path, page: str) -> str:
    return str(_front_matter((root / "docs" / "pages" / page).read_text(encoding="utf-8"))["title"])


@cache
def _front_matter(text: str) -> dict[str, Any]:
    return yaml.safe_load(text[4:].partition("\n---\n")[0])
