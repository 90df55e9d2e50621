"""Each question has a thread where it was asked, and a section that answers it or a place among those that wait."""

import re
from collections import Counter
from pathlib import Path

import pytest

from docs.publish.errors import PublishError
from docs.publish.macros import questions
from docs.publish.markdown import pages
from docs.publish.place import Place
from tests.benchmarks.source import ROOT
from tests.pages import style
from tests.pages.style import MOST_IN_A_SENTENCE as MOST

READ = "docs/pages"  # through docs.publish

TEXT = pages.texts()["reference/questions.md"]
LINK = re.compile(r"\[[^]]+\]\((?P<target>[^)\s]+)\)")
_, _, OPEN = TEXT.partition("{ #unanswered }\n")
SUBJECTS = questions.by_subject(ROOT)
ANSWERED = [question for asked in SUBJECTS.values() for question in asked]


def waiting() -> list[tuple[str, str]]:
    """The questions without an answer, each with its thread."""
    lines = [line for line in OPEN.splitlines() if line.startswith("|") and "](" in line]
    cells = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines]
    assert not (wrong := [row for row in cells if len(row) != 2 or not LINK.fullmatch(row[1])]), wrong
    return [(asked, thread.partition("](")[2][:-1]) for asked, thread in cells]


def test_every_question_asks_and_has_its_thread():
    every = [(question.ask, question.thread) for question in ANSWERED] + waiting()
    assert not [ask for ask, thread in every if not ask.endswith("?") or not thread.startswith("https://")]


def test_every_answer_is_a_section_of_its_page():
    sections = {page: anchors(text) for page, text in pages.texts().items()}
    missing = [f"{each.page}#{each.section}" for each in ANSWERED if each.section not in sections[each.page]]
    assert not missing, f"no such sections: {missing}"


def test_every_answer_is_one_to_three_short_sentences():
    """A reader who does not follow the link has an answer; a program sees only the period and the length."""
    cut = [each.answer for each in ANSWERED if not each.answer.endswith(".")]
    assert not cut, f"no sentences: {cut}"
    said = {each.answer: style.sentences(each.answer) for each in ANSWERED}
    long = [answer for answer, parts in said.items() if len(parts) > 3 or max(map(style.words, parts)) > MOST]
    assert not long, f"more than three sentences, or one of more than {MOST} words: {long}"


def test_every_subject_is_shown_once():
    topics = [text for page, text in pages.texts().items() if page.startswith("reference/questions-")]
    assert all("{{ questions(rows.subjects) }}" in text for text in topics)
    shown = [subject for text in topics for _, subject in pages.front_matter(text)["rows"]["subjects"]]
    assert sorted(shown) == sorted(SUBJECTS), "a subject of some page has no heading on a page of questions, or two"


def test_what_has_no_answer_stands_at_the_end():
    assert waiting()
    assert not re.search(r"^## |\{\{", OPEN, flags=re.MULTILINE), "a section behind those without an answer"


def test_no_question_and_no_thread_stands_twice():
    every = [(question.ask, question.thread) for question in ANSWERED] + waiting()
    words = Counter(re.sub(r"\W+", " ", ask).strip().lower() for ask, _ in every)
    threads = Counter(thread for _, thread in every)
    assert not [each for each, count in (words + threads).items() if count > 1]


def test_each_section_of_those_that_wait_is_a_table():
    """Rows without the head of a table would be a paragraph, which the search takes no questions from."""
    tables = re.findall(r"^### .+\n\n\| question \| thread \|\n\|[-|]+\|\n((?:\|.*\n)+)", OPEN, flags=re.MULTILINE)
    assert sum(lines.count("\n") for lines in tables) == len(waiting())


def anchors(page: str) -> set[str]:
    """The names of a page's sections: given, or made from the heading."""
    headings = re.findall(r"^#{1,4} (.+?)(?: \{ ?#([\w-]+)(?: [^}]*)?\})?$", page, flags=re.MULTILINE)
    return {given or re.sub(r"[^\w\s-]", "", title).strip().lower().replace(" ", "-") for title, given in headings}


# ---- the table ------------------------------------------------------------------------------------------------------

ASKED = """    - ask: Why {}?
      answer: So
      section: so
      thread: https://github.com/a/b/issues/{}
"""
AT = Place("reference/questions-sums.md", "reference/questions-sums/")


def write(root: Path, **asked: str) -> None:
    """Pages whose front matter has these questions about sums."""
    (root / "docs/pages/sums").mkdir(parents=True)
    for name, text in asked.items():
        (root / f"docs/pages/sums/{name}.md").write_text(f"---\ntitle: A\nquestions:\n  sums:\n{text}---\n\n# A\n")


def test_each_subject_has_its_heading(tmp_path: Path):
    write(tmp_path, a=ASKED.format("not", 1))
    lines = questions.tables(tmp_path, AT, [("Adding up", "sums")]).splitlines()
    assert lines[:3] == ["## Adding up { #sums }", "", "| question | answer | thread |"]


def test_the_page_that_answers_most_comes_first(tmp_path: Path):
    write(tmp_path, few=ASKED.format("not", 1), many=ASKED.format("so", 2) + ASKED.format("ever", 3))
    head, _, *rows = questions.table(tmp_path, AT, "sums").splitlines()
    assert head == "| question | answer | thread |"
    assert rows[0] == "| Why so? | [So](../sums/many.md#so) | [b#2](https://github.com/a/b/issues/2) |"
    assert [row.partition("?")[0] for row in rows] == ["| Why so", "| Why ever", "| Why not"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("      answer: So\n", "", r"sums/a\.md: questions: expected ask, answer, .*, got ask, section, thread"),
        ("answer:", "answers:", "expected ask, answer, section and thread, got ask, answers"),
        ("/1", "/one", "whose address ends with its number, got"),
        ("  sums:", "  products:", "questions: expected one of products; got 'sums'"),
        ("ask: Why", "ask: [Why", r"sums/a\.md: expected front matter in YAML"),
    ],
)
def test_a_faulty_question_stops_the_build(tmp_path: Path, old: str, new: str, message: str):
    write(tmp_path, a=ASKED.format("not", 1))
    page = tmp_path / "docs/pages/sums/a.md"
    page.write_text(page.read_text().replace(old, new))
    with pytest.raises(PublishError, match=message):
        questions.table(tmp_path, AT, "sums")


@pytest.mark.parametrize(
    ("thread", "name"),
    [
        ("https://github.com/pytorch/pytorch/pull/62092", "pytorch#62092"),
        ("https://discuss.pytorch.org/t/why-my-manual-gru-is-slower/86461", "discuss 86461"),
    ],
)
def test_a_thread_is_called_by_its_number(thread: str, name: str):
    assert questions.name_of(thread) == name
