"""The learning paths: each leads through pages that stand, and ends with questions whose answers are computed."""

import ast
import re

import pytest

from docs.publish.macros.catalogue import NUMBERS
from docs.publish.markdown import pages
from docs.publish.markdown.pages import PAGES, front_matter
from tests.pages.prose import literals

READ = "docs/pages"  # through docs.publish

START = (PAGES / "index.md").read_text(encoding="utf-8")
COMPUTED = re.compile(rf"\{{\{{ (?:{'|'.join(NUMBERS)})\(")


def text(level: str) -> str:
    return (PAGES / "learning" / f"{level}.md").read_text(encoding="utf-8")


def legs(level: str) -> list[list[str]]:
    """What the page hands to `route`, there or in its front matter."""
    if named := front_matter(text(level)).get("route"):
        (route,) = named.values()
        return route["legs"]
    (arguments,) = re.findall(r"\{\{ route\((.*?)\) \}\}", text(level), flags=re.DOTALL)
    return ast.literal_eval(f"[{arguments}]")


def answers(page: str) -> dict[str, str]:
    """The questions of a self-check, with what each reveals."""
    section = page.partition('??? question "Self-check')[2].partition("\n<div")[0]
    parts = re.split(r'^ {4}\?\?\? question "(.*)"$', section, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("level", pages.LEVELS)
def test_every_page_of_a_path_stands(level: str) -> None:
    pages = [page for _, page, _ in legs(level)]
    assert pages and len(pages) == len(set(pages))
    missing = {page for page in pages if not (PAGES / re.sub(r"\.ipynb$", ".py", page.partition("#")[0])).is_file()}
    assert not missing


@pytest.mark.parametrize("level", pages.LEVELS)
def test_a_path_says_what_the_reader_can_do_and_leads_on(level: str) -> None:
    page = text(level)
    gains = [what for _, _, what in legs(level)]
    assert "## After each page you can\n" in page and len(gains) == len(set(gains))
    assert not [what for what in gains if not 10 < len(what) <= 50], "expected each page's gain in one line"
    assert f"level: {level}\n" in page and "\n## Next\n" in page


@pytest.mark.parametrize("level", pages.LEVELS)
def test_a_self_check_is_numbered_and_its_answers_are_computed(level: str) -> None:
    found = answers(text(level))
    assert found and [question.partition(".")[0] for question in found] == [str(at + 1) for at in range(len(found))]
    assert all(question.endswith("?") for question in found)
    typed = [question for question, answer in found.items() if not COMPUTED.search(answer)]
    assert not typed, "an answer without a number from a record or a run"
    assert not list(literals(text(level)))
    assert all("](../" in answer for answer in found.values()), "an answer leads to the page that explains it"


def test_an_answer_that_is_typed_is_found() -> None:
    page = (
        '??? question "Self-check"\n\n    ??? question "1. How long?"\n\n        Long.\n\n'
        '    ??? question "2. And?"\n\n        {{ bound("a") }}\n'
    )
    found = answers(page)
    assert [bool(COMPUTED.search(answer)) for answer in found.values()] == [False, True]


def test_no_question_stands_on_two_paths() -> None:
    every = [question.partition(". ")[2] for level in pages.LEVELS for question in answers(text(level))]
    assert len(every) == len(set(every))


def test_the_start_page_leads_to_each_path_and_the_beginners_ends_with_the_tutorial() -> None:
    section = START.partition("## Start here")[2].partition("\n## ")[0]
    assert re.findall(r"\(learning/(\w+)\.md\)", section) == list(pages.LEVELS)
    assert legs("beginner")[-1][1] == "examples/first-optimized-module.md"


# ---- how long a page takes to read -----------------------------------------------------------------------------------

PROSE = "word " * 1000  # five minutes


@pytest.mark.parametrize(
    "around",
    [
        "{words}",
        "`2 <= n` {words} `n > 2`",
        "{{% if a <= b %}} {words} {{{{ 'b' if a > b }}}}",
        "{words} <figure class='a' {{{{ gpu('a', 'b > c') }}}}></figure>",
    ],
)
def test_all_prose_counts_and_nothing_else(around: str):
    assert pages.minutes(around.format(words=PROSE)) == 5
