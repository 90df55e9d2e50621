"""What the search knows of each section: its prose, and in fields of their own what else people look for.

The search's plugin makes the sections. Here code leaves the text, since an excerpt shows prose; its words stay to be
found. A section learns its page's title and the questions that it answers, a page what its front matter says of it.
"""

import html
import keyword
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urljoin

QUESTIONS = "reference/questions"  # how their pages begin
Entry = dict[str, Any]

CODE = re.compile(r"<pre>(.*?)</pre>", re.S)
LISTING = re.compile(r"<pre\b.*?</pre>", re.S)
COLOUR = re.compile(r"</?(?:span|a)\b[^>]*>")
FOR_THE_PLUGIN = re.compile(r'\s?data-search-\w+="[^"]+"')  # which removes it
TAG = re.compile(r"<[^>]*>")
WORD = re.compile(r"[A-Za-z_]\w+")
CELL = r"<td[^>]*>(?P<{}>(?:(?!</td>).)*)</td>\s*"
ROW = re.compile(r"<tr[^>]*>\s*" + CELL.format("question") + CELL.format("answer"), re.S)
NEEDS = re.compile(r"(<dt>What it needs</dt>\s*)<dd>")
CELL_END = re.compile(r"(</t[dh]>|<br ?/?>)")  # words of two cells are two words in an excerpt
LINK = re.compile(r'href="([^"]+)"')
HEADING = re.compile(r'<h[23] id="([^"]+)"')


def questions(page: str, url: str) -> dict[str, list[str]]:
    """The questions of a page, by the address of what answers them, or of their own section while nothing does.

    Args:
        page: the page's HTML: tables whose rows begin with a question and a link to its answer. Where there is no
            answer the thread follows, a link to another site.
        url: its address below the site's, from which the links lead.
    """
    found: dict[str, list[str]] = {}
    headings = [(heading.start(), heading[1]) for heading in HEADING.finditer(page)]
    for row in ROW.finditer(page):
        link = next(iter(LINK.findall(row["answer"])), "//")
        if "//" in link:
            link = "#" + next((name for start, name in reversed(headings) if start < row.start()), "")
        answer = urljoin(f"https://site/{url}", link).removeprefix("https://site/")
        found.setdefault(answer, []).append(TAG.sub("", row["question"]).strip())
    return found


def without_figures(page: str) -> str:
    """A page's HTML with what is nothing to search marked: the labels of figures, which are no sentences, and what a
    kernel needs, which all of them say in nearly the same words at the top of their pages.
    """
    page = CELL_END.sub(r" \1", page.replace("<svg ", '<svg data-search-exclude="true" '))
    return NEEDS.sub(r'\1<dd data-search-exclude="true">', page)


def plain(page: str) -> str:
    """A page's HTML with its listings in one colour: most of what the plugin would parse are the colours' tags."""
    return LISTING.sub(lambda listing: COLOUR.sub("", listing[0]), page)


def entries(sections: Iterable[Entry], asked: Mapping[str, list[str]], about: Mapping[str, str]) -> list[Entry]:
    """The sections as they are to be found.

    Args:
        sections: as the plugin makes them, those of a page in their order, with `location`, `title` and `text`.
        asked: the questions that a section answers, by its location.
        about: what a page says of itself in its front matter, by its address.
    """
    found = []
    titles: dict[str, str] = {}
    sections = list(sections)
    known = {section["location"] for section in sections}
    answered_at: dict[str, list[str]] = {}  # a page, where the anchor is none of a section
    for location, texts in asked.items():
        answered_at.setdefault(location if location in known else location.partition("#")[0], []).extend(texts)
    for section in sections:
        page, _, anchor = section["location"].partition("#")
        title = titles.setdefault(page, section["title"])
        code = " ".join(CODE.findall(section["text"]))
        words = dict.fromkeys(WORD.findall(html.unescape(TAG.sub("", code))))  # in their order, each once
        names = " ".join(word for word in words if not keyword.iskeyword(word))
        prose = re.sub(r"\s+", " ", CODE.sub("", section["text"])).strip()
        answered = "".join(f"<p>{question}</p>" for question in answered_at.get(section["location"], []))
        names += " cplusplus" * ("C++" in section["text"] + section["title"])  # of "C++" the index keeps a "c"
        named = (title if anchor else about.get(page, "")) + " cplusplus" * ("C++" in section["title"])
        extra = {"page": named, "code": names, "questions": answered}
        found.append(section | {"text": answered + prose} | {name: text for name, text in extra.items() if text})
    return found
