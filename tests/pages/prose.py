"""Finds literal results in prose: speedups, times, bandwidths, rates and percentages that somebody typed.

Numbers on a page come from macros: measured ones from gpu() and others, datasheet figures from datasheet(), worked ones
from bound(). What stays allowed is what is no result: shapes (8192×16384), counts (three kernels), sizes
(128 bytes, 16 bit), versions, dtype names (bf16), percentiles (p50), exponents, and anything in code.
"""

import re
from collections.abc import Iterator

from docs.publish.markdown.fences import code_in, replaced

_WORDS = "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|fifty|hundred|thousand"
_NUMBER = rf"(?:(?<![\w.,×])\d[\d,]*(?:\.\d+)?(?:[ \u00a0](?:hundred|thousand|million|billion))?|\b(?:{_WORDS}))"
_GAP = r"\*{0,2}(?:[ \u00a0\u202f\u2009-]|&nbsp;)*"  # "**63** us", "5-second"
_TIME = r"(?:(?:nano|micro|milli)?seconds?|[nuµμm]s|[mun]?secs?|(?<!\d{4})s|minutes?|mins?|hours?|hrs?|h)"  # no "4090s"
_PREFIX = r"(?:[kKMGTPE]i?|kilo|mega|giga|tera|peta)"
_WORK = r"(?:[Bb]ytes?|[Bb]its?|[Bb]|FLOPs?|flops?|[Oo]ps?|tokens?|samples?|images?|rows?|elements?|it|steps?|calls?)"
_PER_SECOND = rf"(?:{_GAP}/{_GAP}s(?:ec(?:ond)?)?\b|{_GAP}(?:per|a)[ -]second\b|ps\b)"
_FASTER = (
    r"(?:(?:as (?:fast|slow|quick|long)|faster|slower|quicker|longer|shorter|better|worse|cheaper|higher|lower)\b)"
)
_SPEED = r"(?:(?:the |as much |its )?(?:speed|throughput|bandwidth|time|rate|latency|runtime)\b)"

PATTERNS = {
    "percentage": rf"{_NUMBER}{_GAP}(?:%|percent\b|per[ -]cent\b|percentage[ -]points?\b)",
    "factor": rf"{_NUMBER}\*{{0,2}}[x×](?![\w×]|[ \u00a0]*\d)|{_NUMBER}{_GAP}(?:[x×] {_FASTER}|-?fold\b)",
    "speedup": rf"(?:{_NUMBER}{_GAP}times|\b(?:twice|thrice|half|a third|a quarter)) (?:{_FASTER}|{_SPEED})",
    "rate": rf"{_NUMBER}{_GAP}(?:{_PREFIX}?{_WORK}{_PER_SECOND}|[KMGTPE]FLOP[Ss]\b|[kMG]Hz\b)",
    "time": rf"{_NUMBER}{_GAP}{_TIME}(?![\w/^])",
}
LITERAL = re.compile("|".join(f"(?P<p{index}>{pattern})" for index, pattern in enumerate(PATTERNS.values())))

_COMMENT = re.compile(r"<!--.*?-->|\{# .*? #\}", re.S)
_MACRO = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.S)
_MACRO_TEXT = re.compile(r"""\b(?:title|note|caption|text)\s*=\s*(?P<quote>["'])(?P<text>.*?)(?P=quote)""", re.S)
_STYLE = re.compile(r"<(style|script|code|pre)\b.*?</\1>", re.S | re.I)
_TAG = re.compile(r"<[^<>]+>")
_TARGET = re.compile(r"\]\([^)\s]*|\]:\s*\S+|https?://\S+")
_ATTRIBUTES = re.compile(r"\{[^{}]*\}")
_META = re.compile(r"^(?! *(?:title|note|description):)[^\n]*$", re.M)  # of the page, and of its charts and tables


def literals(text: str) -> Iterator[tuple[int, str, str]]:
    """The typed results of a page's Markdown: (line from 1, kind, text)."""
    prose = prose_of(text)
    for match in LITERAL.finditer(prose):
        kind = next(kind for index, kind in enumerate(PATTERNS) if match[f"p{index}"])
        yield prose.count("\n", 0, match.start()) + 1, kind, " ".join(match[0].split())


def prose_of(text: str) -> str:
    """A page without code, macros, addresses and markup; lines keep their numbers.

    A chart's title and note are prose although they stand in a macro; so are the title and description of a page.
    """
    text = _front_matter(text)
    text = _COMMENT.sub(_blank, text)
    text = replaced(text, code_in(text), _space)
    text = _MACRO.sub(_macro_prose, text)
    for pattern in (_STYLE, _TAG, _TARGET, _ATTRIBUTES):
        text = pattern.sub(_blank, text)
    return text


def _front_matter(text: str) -> str:
    """Blank the front matter but for what readers see."""
    if not text.startswith("---\n") or "\n---" not in text[4:]:
        return text
    end = text.index("\n---", 4)
    return _META.sub("", text[:end]) + text[end:]


def _macro_prose(macro: re.Match[str]) -> str:
    """Blank a macro but for the sentences given to it."""
    kept, last = "", 0
    for found in _MACRO_TEXT.finditer(macro[0]):
        kept += _space(macro[0][last : found.start("text")]) + found["text"]
        last = found.end("text")
    return kept + _space(macro[0][last:])


def _blank(match: re.Match[str]) -> str:
    return _space(match[0])


def _space(text: str) -> str:
    """As many lines, and something between words that is neither a space nor a number."""
    return "\n" * text.count("\n") or "\ufffc"
