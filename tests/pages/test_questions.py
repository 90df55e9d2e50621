"""Each question has a thread where it was asked, and a section that answers it or a place among those that wait."""

import re
from collections import Counter

import pytest

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


@pytest.mark.parametrize("row", rows(ANSWERED), ids=lambda row: row[0][:60])
def test_a_question_has_its_answer_and_its_thread(row: list[str]):
    question, answer, thread = row
    assert question.endswith("?")
    assert re.match(r"https://", target(thread))
    file, _, anchor = target(answer).partition("#")
    path = PAGE.parent / file
    assert anchor in anchors(path.read_text(encoding="utf-8")), f"{file} has no section #{anchor}"


@pytest.mark.parametrize("row", rows(OPEN), ids=lambda row: row[0][:60])
def test_a_question_without_an_answer_has_its_thread(row: list[str]):
    question, thread = row
    assert question.endswith("?")
    assert re.match(r"https://", target(thread))


def test_what_has_no_answer_stands_at_the_end():
    assert rows(OPEN)
    assert not re.search(r"^## ", OPEN, flags=re.MULTILINE), "a section behind those without an answer"


def test_there_are_many_over_the_whole_subject():
    answers = [target(answer) for _, answer, _ in rows(ANSWERED)]
    assert len(answers) >= 120
    folders = {(PAGE.parent / answer).resolve().parent.name for answer in answers}
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
