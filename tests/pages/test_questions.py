"""Each question has a thread where it was asked, and a section that answers it or a place among those that wait."""

import re
from collections import Counter

from docs.publish.markdown.pages import PAGES

PAGE = PAGES / "reference" / "questions.md"
TEXT = PAGE.read_text(encoding="utf-8")
LINK = re.compile(r"\[[^]]+\]\((?P<target>[^)\s]+)\)")
ANSWERED, _, OPEN = TEXT.partition("{ #unanswered }\n")
SUBJECTS = {"compiler", "patterns", "validation", "kernels", "examples"}


def rows(part: str) -> list[list[str]]:
    """The cells of each question in a part of the page."""
    lines = [line for line in part.splitlines() if line.startswith("|") and "](" in line]
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines]


def target(cell: str) -> str:
    link = LINK.fullmatch(cell)
    assert link, cell
    return link["target"]


def test_every_question_asks_and_has_its_thread():
    """A row has two cells, and between them the answer's where there is one."""
    every = [(row, 3) for row in rows(ANSWERED)] + [(row, 2) for row in rows(OPEN)]
    assert not [row for row, cells in every if len(row) != cells]
    assert not [row[0] for row, _ in every if not row[0].endswith("?")]
    assert not [row for row, _ in every if not target(row[-1]).startswith("https://")]


def test_every_answer_is_a_section_of_a_page():
    answers = {target(answer).partition("#")[::2] for _, answer, _ in rows(ANSWERED)}
    sections = {file: anchors((PAGE.parent / file).read_text(encoding="utf-8")) for file, _ in answers}
    missing = sorted(f"{file}#{anchor}" for file, anchor in answers if anchor not in sections[file])
    assert not missing, f"no such sections: {missing}"


def test_what_has_no_answer_stands_at_the_end():
    assert rows(OPEN)
    assert not re.search(r"^## ", OPEN, flags=re.MULTILINE), "a section behind those without an answer"


def test_there_are_some_about_each_subject():
    folders = {(PAGE.parent / target(answer)).resolve().parent.name for _, answer, _ in rows(ANSWERED)}
    assert not (missing := SUBJECTS - folders), f"no question about {missing}"


def test_no_question_and_no_thread_stands_twice():
    every = rows(ANSWERED) + rows(OPEN)
    words = Counter(re.sub(r"\W+", " ", row[0]).strip().lower() for row in every)
    threads = Counter(target(row[-1]) for row in every)
    assert not [each for each, count in (words + threads).items() if count > 1]


def test_each_section_is_a_table():
    """Rows without the head of a table would be a paragraph, which the search takes no questions from."""
    for part, head in ((ANSWERED, "| question | answer | thread |"), (OPEN, "| question | thread |")):
        tables = re.findall(r"^#{2,3} .+\n\n(.+)\n\|[-|]+\|\n((?:\|.*\n)+)", part, flags=re.MULTILINE)
        assert {top for top, _ in tables} == {head}
        assert sum(lines.count("\n") for _, lines in tables) == len(rows(part))


def anchors(page: str) -> set[str]:
    """The names of a page's sections: given, or made from the heading."""
    headings = re.findall(r"^#{1,4} (.+?)(?: \{ ?#([\w-]+)(?: [^}]*)?\})?$", page, flags=re.MULTILINE)
    return {given or re.sub(r"[^\w\s-]", "", title).strip().lower().replace(" ", "-") for title, given in headings}
