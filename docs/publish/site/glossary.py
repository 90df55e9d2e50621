"""The glossary's terms, each shown where it first stands on a page: a link to its entry, which scripts make a tooltip.

The entries are the sections of one page, so that there is one place to write them. A heading is a term; `data-also`
lists what else it is called.
"""

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

PAGE = "reference/glossary.md"
EXCLUDED = ("compiled/", "notebooks/")  # pages of generated code, and those that other tools make

PROPER = {"Dynamo", "Inductor", "Triton", "Liger-Kernel"}  # names that have a capital everywhere

ENTRY = re.compile(
    r"^### (?P<name>[^{\n]+?)(?: *\{(?:#(?P<id>[\w-]+))? *(?:data-also=\"(?P<also>[^\"]+)\")?\})?\n\n"
    r"(?P<text>.+?)(?=\n\n|\Z)",
    re.M | re.S,
)
# What is passed over whole: code, what can be clicked already, headings and drawings.
TOKEN = re.compile(
    r"<(?P<whole>script|style|svg|pre|code|a|button|select|summary|h[1-6])\b.*?</(?P=whole)>"
    r"|<[^>]*>|(?P<prose>[^<]+)|<",
    re.S,
)


@dataclass(frozen=True)
class Term:
    """An entry.

    Attributes:
        id: its anchor on the glossary's page.
        names: what it is called, the heading first.
        text: what it means, in plain text.
    """

    id: str
    names: tuple[str, ...]
    text: str

    @cached_property
    def patterns(self) -> list[str]:
        """Its names as they may stand in prose: in the plural too, and with a capital at the start of a sentence."""
        names = sorted(self.names, key=len, reverse=True)
        return [rf"{_written(name)}(?:e?s)?(?![\w/-])" for name in names]


def terms(markdown: str) -> list[Term]:
    """The entries of the glossary's page."""
    found = []
    for entry in ENTRY.finditer(markdown):
        name = entry["name"]
        common = name not in PROPER and name.split()[0][1:].islower()  # a heading's first letter is a capital
        names = [name[0].lower() + name[1:] if common else name, *re.split(r", *", entry["also"] or "")]
        text = re.sub(r"`([^`]*)`", r"\1", " ".join(entry["text"].split()))
        anchor = entry["id"] or re.sub(r"\W+", "-", name.lower())
        found.append(Term(anchor, tuple(filter(None, names)), text))
    return found


def shown(page: str, entries: Sequence[Term], address: str) -> str:
    """A page's HTML with each term marked where it first stands, and what the marked ones mean at its end.

    A term within a box that opens is marked only if it stands nowhere else: a reader may never open the box.

    Args:
        address: the glossary's, from the page.
    """
    if not entries:
        return page
    longest = sorted(enumerate(entries), key=lambda entry: -len(entry[1].names[0]))  # a launch time is no launch
    each = [(number, pattern) for number, term in longest for pattern in term.patterns]
    # alternatives that begin with a letter, and are no groups, are passed over quickly
    names = re.compile(rf"\b(?=\w)(?<![./-])(?:{'|'.join(pattern for _, pattern in each)})")
    apart = [(number, re.compile(pattern)) for number, pattern in each]
    tokens = list(TOKEN.finditer(page))
    first: dict[int, tuple[int, int]] = {}  # where each term is marked: from here to there
    prose = [(token.span(), in_box) for token, in_box in zip(tokens, _in_boxes(tokens), strict=True) if token["prose"]]
    for span, _ in sorted(prose, key=lambda part: part[1]):
        for match in names.finditer(page, *span):
            found = next(number for number, pattern in apart if pattern.match(page, match.start()))
            first.setdefault(found, match.span())
    for number, (begin, end) in sorted(first.items(), key=lambda item: item[1], reverse=True):
        anchor = entries[number].id
        link = f'<a class="rp-term" href="{address}#{anchor}" aria-describedby="term-{anchor}">{page[begin:end]}</a>'
        page = page[:begin] + link + page[end:]
    return page + "".join(
        f'<div class="rp-meaning" id="term-{entries[number].id}" role="tooltip" popover="manual">'
        f"{html.escape(entries[number].text, quote=False)}</div>"
        for number in sorted(first)
    )


def _written(name: str) -> str:
    """A name as a pattern; a common noun may begin a sentence, and a line may end in it."""
    first = re.escape(name[0]) if re.search("[A-Z0-9]", name) else f"[{name[0].upper()}{name[0]}]"
    return first + re.escape(name[1:]).replace(r"\ ", r"\s+")


def _in_boxes(tokens: Iterable[re.Match[str]]) -> Iterator[bool]:
    """Of each token, whether it stands in a box that opens."""
    depth = 0
    for token in tokens:
        if not token["prose"]:
            depth += token[0].startswith("<details") - token[0].startswith("</details")
        yield depth > 0
