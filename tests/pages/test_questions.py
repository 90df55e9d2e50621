"""Each question has a thread where it was asked and a section that answers it."""

import re

import pytest

from docs.publish.markdown.pages import PAGES
from tests.benchmarks.source import ROOT

PAGE = PAGES / "reference" / "questions.md"
LINK = re.compile(r"\[[^]]+\]\((?P<target>[^)\s]+)\)")
ROWS = [line for line in PAGE.read_text().splitlines() if line.startswith("|") and "](" in line]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:60])
def test_a_question_has_its_thread_and_its_answer(row: str):
    question, answer, thread = row.strip("|").split(" | ")
    assert question.rstrip().endswith("?")
    assert re.match(r"https://", LINK.search(thread)["target"])
    file, _, anchor = LINK.search(answer)["target"].partition("#")
    assert anchor in anchors((PAGE.parent / file).read_text()), f"{file} has no section #{anchor}"


def test_a_table_for_each_page_in_the_order_of_the_navigation():
    tables = re.findall(r"^## (.+)\n\n\| question .*\n.*\n((?:\|.*\n)+)", PAGE.read_text(), flags=re.MULTILINE)
    titles = re.findall(r"^ +- ([^:]+): \S+\.md$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert [title for title, _ in tables] == [title for title in titles if title in dict(tables)]
    assert sum(rows.count("\n") for _, rows in tables) == len(ROWS)
    for title, rows in tables:
        file = PAGE.parent / LINK.search(rows.splitlines()[0].split(" | ")[1])["target"].partition("#")[0]
        assert f"title: {title}\n" in file.read_text()
        for row in rows.splitlines():
            assert f"{file.name}#" in row, f"under {title!r}: {row}"


def anchors(page: str) -> set[str]:
    """The names of a page's sections: given, or made from the heading."""
    headings = re.findall(r"^#{2,4} (.+?)(?: \{ #([\w-]+) \})?$", page, flags=re.MULTILINE)
    return {given or re.sub(r"[^\w\s-]", "", title).strip().lower().replace(" ", "-") for title, given in headings}
