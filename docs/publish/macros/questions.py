"""What people have asked: each question stands in the front matter of the page that answers it.

    questions:
      timing:                                             # a subject: a heading of a page of questions
        - ask: Why is the first inference after a pause slow?
          answer: It finds low clocks and cold caches.    # in one to three sentences, which link to
          section: a-mean-of-few-calls                    # this section of the page
          thread: https://github.com/microsoft/onnxruntime/issues/19177

The pages reference/questions-… show them by subject. What no page answers yet is written on reference/questions.
"""

import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from docs.publish.errors import PublishError, unknown
from docs.publish.markdown import pages
from docs.publish.place import Place

HEAD = "| question | answer | thread |\n|---|---|---|\n"
NUMBER = re.compile(r"(?:/(?P<repository>[^/]+)/(?:issues|pull|discussions))?/(?P<number>\d+)$")


@dataclass(frozen=True)
class Question:
    """A question that a page answers; `page` is its path, "validation/timing.md"."""

    page: str
    ask: str
    answer: str
    section: str
    thread: str

    def row(self, place: Place) -> str:
        """The question as a row of a table in Markdown."""
        link = posixpath.relpath(self.page, posixpath.dirname(place.path) or ".")
        return f"| {self.ask} | [{self.answer}]({link}#{self.section}) | [{name_of(self.thread)}]({self.thread}) |"


def tables(root: Path, place: Place, subjects: Iterable[tuple[str, str]]) -> str:
    """The questions of subjects in Markdown, each a heading and a table; a subject has a title and a name."""
    return "\n".join(f"## {title} {{ #{name} }}\n\n{table(root, place, name)}" for title, name in subjects)


def table(root: Path, place: Place, subject: str) -> str:
    """The questions of a subject as a table in Markdown: first those of the page that answers most of them.

    Raises:
        PublishError: no page answers any, or a question lacks something.
    """
    known = by_subject(root)
    if subject not in known:
        raise unknown("questions", subject, known)
    groups: dict[str, list[Question]] = {}
    for question in known[subject]:
        groups.setdefault(question.page, []).append(question)
    ordered = sorted(groups.values(), key=len, reverse=True)
    return HEAD + "".join(f"{question.row(place)}\n" for group in ordered for question in group)


def by_subject(root: Path) -> dict[str, list[Question]]:
    """The questions that pages answer, in the order of the pages' paths.

    Raises:
        PublishError: a question lacks something, or has something unknown.
    """
    found: dict[str, list[Question]] = {}
    for page, said in pages.front_matters(root).items():
        for subject, asked in said.get("questions", {}).items():
            found.setdefault(str(subject), []).extend(_question(page, words) for words in asked)
    return found


def _question(page: str, words: Mapping[str, str]) -> Question:
    try:
        return Question(page=page, **words)
    except TypeError as error:
        expected = "ask, answer, section and thread"
        raise PublishError(f"{page}: questions: expected {expected}, got {', '.join(words)}") from error


def name_of(thread: str) -> str:
    """What a thread is called: "pytorch#18012" on GitHub, "discuss 86461" in a forum.

    Raises:
        PublishError: the address does not end with a number.
    """
    found = NUMBER.search(urlsplit(thread).path)
    if not found:
        raise PublishError(f"questions: expected a thread whose address ends with its number, got {thread!r}")
    host = urlsplit(thread).netloc.partition(".")[0]
    return f"{found['repository']}#{found['number']}" if found["repository"] else f"{host} {found['number']}"
