"""Code in Markdown: fenced blocks with what they say of themselves, and where code stands among the prose."""

import hashlib
import itertools
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property

from docs.publish.errors import PublishError

FENCE = re.compile(r"^(?P<indent>[ \t>]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>.*?)[ \t]*$")
SPAN = re.compile(r"(?<!`)(?P<ticks>`+)(?!`)(?:(?!\n[ \t]*\n).)+?(?<!`)(?P=ticks)(?!`)", re.S)
INCLUDE = re.compile(r'^-+8<-+ +"(?P<path>[^":]+)(?::(?P<section>[\w-]+))?"$')
ALIASES = {"py": "python", "shell": "sh"}
SHELLS = {"sh", "bash"}
MEASURES = re.compile(r"python -m tests\.benchmarks (?P<case>[\w/-]+)$")
SCRIPT = re.compile(r"(?:\w+=\S* )*python (?:-m snippets\.|-c )")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: the page's path below docs/pages.
        line, last: the lines of the opening and of the closing fence, from 1.
        info: what follows the opening fence.
        body: the code, without the block's indentation.
    """

    page: str
    line: int
    last: int
    fence: str
    info: str
    body: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @cached_property
    def hash(self) -> str:
        """Of the language and the body: a title or a highlighted line may change."""
        return hashlib.sha256(f"{self.language}\n{self.body}".encode()).hexdigest()[:16]

    @property
    def language(self) -> str:
        """ "python" for `python title="x"` and for `{.python .annotate}`; "" where none is given."""
        word = re.match(r"(?:\{ *\.)?([\w+#-]*)", self.info)
        return ALIASES.get(word[1], word[1]) if word else ""

    @cached_property
    def includes(self) -> list[tuple[str, str | None]]:
        """(path, section) of each include; the section is None where a whole file is included."""
        found = (INCLUDE.match(line.strip()) for line in self.body.splitlines())
        return [(match["path"], match["section"]) for match in found if match]

    @property
    def embedded(self) -> bool:
        """Whether all of the block is included from files."""
        lines = [line.strip() for line in self.body.splitlines() if line.strip()]
        return bool(lines) and all(INCLUDE.match(line) for line in lines)

    @property
    def measures(self) -> list[str]:
        """The cases that a shell block measures, if that is all it does: for minutes, into a record."""
        lines = [line for line in self.body.splitlines() if line.strip()] if self.language in SHELLS else []
        found = [match["case"] for match in map(MEASURES.match, lines) if match]
        return found if len(found) == len(lines) else []

    @property
    def runnable(self) -> bool:
        """Whether a test may run it: Python, or shell that starts snippets. The rest measures, installs or commits."""
        if self.language not in SHELLS:
            return self.language == "python"
        body = self.body.replace("\\\n", " ")
        lines = [line for line in body.splitlines() if line.strip() and not line.startswith("#")]
        return all(SCRIPT.match(line) for line in lines)


@cache  # each page is asked for the names that another one uses
def blocks_of(text: str, page: str, first: int = 1) -> tuple[Block, ...]:
    """The fenced blocks of a page's Markdown.

    Args:
        first: the line of the file on which `text` starts.

    Raises:
        PublishError: a fence is not closed.
    """
    found: list[Block] = []
    lines = iter(enumerate(text.splitlines(), first))
    for number, line in lines:
        start = FENCE.match(line)
        if not start or "`" in start["info"]:
            continue
        body = []
        for _, inner in lines:
            end = FENCE.match(inner)
            if end and not end["info"] and end["fence"].startswith(start["fence"]):
                break
            body.append(inner.removeprefix(start["indent"]))
        else:
            raise PublishError(f"{page}:{number}: the fenced block that starts here is not closed")
        code = textwrap.dedent("\n".join(body)).strip("\n")
        found.append(Block(page, number, number + len(body) + 1, start["fence"], start["info"], code))
    return tuple(found)


def code_in(text: str, page: str = "", first: int = 1) -> list[tuple[int, int]]:
    """Where a page's code is: the first and the last index of each fenced block and of each code span.

    Raises:
        PublishError: a fence is not closed.
    """
    lines = text.splitlines(keepends=True)
    begins = [0, *itertools.accumulate(map(len, lines))]
    ends = [begin + len(line.rstrip("\n")) for begin, line in zip(begins, lines, strict=False)]
    fenced = [(begins[block.line - first], ends[block.last - first]) for block in blocks_of(text, page, first)]
    prose = replaced(text, fenced, lambda code: "\n" * len(code))  # a span does not reach across a block
    return sorted([*fenced, *(span.span() for span in SPAN.finditer(prose))])


def replaced(text: str, places: Iterable[tuple[int, int]], replace: Callable[[str], str]) -> str:
    """A text with some places, in ascending order, replaced by what a function makes of each."""
    parts, done = [], 0
    for begin, end in places:
        parts += [text[done:begin], replace(text[begin:end])]
        done = end
    return "".join([*parts, text[done:]])
