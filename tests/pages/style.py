"""The limits of a page's prose: words, sentences, paragraphs, headings, the first screen, and the field's own terms."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from tests.pages.prose import prose_of

MOST_WORDS, MOST_IN_A_SENTENCE, MOST_IN_A_PARAGRAPH, MOST_SENTENCES, MOST_IN_A_HEADING = 2000, 25, 70, 5, 10
FIRST_SCREEN = ("Do this.", "Expect this.", "Paste this.")
TERMS = {  # what only we would say, and the field's term
    r"mend(s|ed|ing)?": "fix",
    r"anew": "again",
    r"held against": "compared with",
    r"multiprocessors?": "SM",
    r"(matrix|math) rate": "FLOP/s",
    r"ceilings?": "measured peak",
    r"matrix-bound": "compute-bound",
    r"by the (GPU's )?clock": "GPU time, wall clock",
    r"launch times?": "µs",
    r"level with": "as fast as",
    r"in turns": "interleaved",
    r"every knob": "max-autotune",
    r"ladders?|rungs?": "as written, native, compiled, Triton",
    r"peers?": "Liger-Kernel, quack",
    r"diary": "log",
    r"traps?": "pitfall",
    r"the square": "score matrix",
    r"padding (behind|in front)": "right, left padding",
}
PRIVATE = re.compile("|".join(rf"(?P<t{index}>\b(?:{words})\b)" for index, words in enumerate(TERMS)), re.I)
STARTS = {
    "heading": re.compile(r"^\s*#+ "),
    "cell": re.compile(r"^\s*\|"),
    "item": re.compile(r"^\s*(?:[-*+]|\d+\.)\s+"),
    "title": re.compile(r'^\s*(?:!!!|\?\?\?\+?|===\+?)[^"\n]*"?'),
}
_HOLDS = re.compile(r"\{\{ *holds\(.*?\) *\}\}", re.S)  # prints nothing
_WORD = re.compile(r"[\w\ufffc](?:[\w'’\-/.,]*[\w\ufffc])?")
_END = re.compile(r"(?<=[.!?:])[\"')*_]*\s+(?=[\"'(*_`\[]*[A-Z\ufffc0-9])")


@dataclass(frozen=True)
class Part:
    """A heading, a paragraph, an item of a list or a cell of a table, at a line of its page."""

    line: int
    kind: str
    text: str


def words(text: str) -> int:
    """Of a text as a reader sees it: code and a number of a macro are one word each."""
    return len(_WORD.findall(text))


def sentences(text: str) -> list[str]:
    return [each for each in _END.split(text) if words(each)]


def parts(text: str) -> Iterator[Part]:
    """What a page's Markdown consists of, without front matter and code."""
    body = text
    if text.startswith("---\n") and "\n---" in text[4:]:
        end = text.index("\n---", 4) + 4
        body = "\n" * text.count("\n", 0, end) + text[end:]
    lines = [(number, line) for number, line in enumerate(prose_of(_HOLDS.sub(_lines, body)).split("\n"), 1)]
    for blank, group in groupby(lines, key=lambda numbered: not numbered[1].strip(" \ufffc|")):
        if not blank:
            yield from _of_block(list(group))


def _lines(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def _of_block(block: list[tuple[int, str]]) -> Iterator[Part]:
    """The parts of lines without an empty one between them."""
    number, kind, text = block[0][0], "paragraph", ""
    for at, line in block:
        starts = next((name for name, sign in STARTS.items() if sign.match(line)), "")
        if starts or kind in ("heading", "title"):
            yield from _unless_empty(number, kind, text)
            number, kind, text = at, starts or "paragraph", ""
        if starts == "cell":
            for cell in line.strip().strip("|").split("|"):
                yield from _unless_empty(at, "cell", cell)
        else:
            text += " " + STARTS["item"].sub("", STARTS["title"].sub("", line)).strip(" #")
    yield from _unless_empty(number, kind, text)


def _unless_empty(line: int, kind: str, text: str) -> Iterator[Part]:
    if words(text.replace("\ufffc", "")):
        yield Part(line, kind, " ".join(text.split()))


def faults(text: str, reference: bool = False) -> Iterator[str]:
    """What a page's Markdown has too much of, each with its line; a `reference` is searched, and may be long."""
    every = list(parts(text))
    count = sum(words(part.text) for part in every)
    if count > MOST_WORDS and not reference:
        yield f"1: {count} words, expected at most {MOST_WORDS}"
    if not reference and (missing := [start for start in FIRST_SCREEN if f"**{start}**" not in text]):
        yield f"1: expected the first screen to have {', '.join(missing)}"
    for part in every:
        if part.kind == "heading" and words(part.text) > MOST_IN_A_HEADING:
            yield f"{part.line}: a heading of {words(part.text)} words: {part.text}"
        if part.kind == "heading":
            continue
        said = sentences(part.text)
        yield from (
            f"{part.line}: a sentence of {words(each)} words: {each}"
            for each in said
            if words(each) > MOST_IN_A_SENTENCE
        )
        if len(said) > MOST_SENTENCES or words(part.text) > MOST_IN_A_PARAGRAPH:
            yield f"{part.line}: a paragraph of {len(said)} sentences, {words(part.text)} words: {part.text[:60]}…"
    for part in every:
        for match in PRIVATE.finditer(part.text):
            term = next(term for index, term in enumerate(TERMS.values()) if match[f"t{index}"])
            yield f"{part.line}: {match[0]!r}, expected {term}: {part.text[:80]}"
