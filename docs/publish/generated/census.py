"""Accounts for every fenced block on every page.

A block is *embedded* (all of it comes from tested files), it *runs* (tests/pages/test_blocks.py runs it), it *measures*
cases (a test holds that they exist), or it is *listed* in unrunnable.toml, by hash and with the reason.
`python -m docs.publish.generated.census` shows what is missing there.
"""

import hashlib
import re
import sys
import textwrap
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = ROOT / "docs" / "pages"
LISTED = Path(__file__).with_name("unrunnable.toml")

FENCE = re.compile(r"^(?P<indent>[ \t>]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>.*?)[ \t]*$")
INCLUDE = re.compile(r'^-+8<-+ +"(?P<path>[^":]+)(?::(?P<section>[\w-]+))?"$')
ALIASES = {"py": "python", "shell": "sh"}
SHELLS = {"sh", "bash"}
MEASURES = re.compile(r"python -m tests\.benchmarks (?P<case>[\w/-]+)$")
SCRIPT = re.compile(r"(?:\w+=\S* )*python (?:-m snippets\.|-c )")


@dataclass(frozen=True)
class Block:
    """A fenced block: its page's path below docs/pages, its first line (from 1), what follows the fence, the code."""

    page: str
    line: int
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

    @property
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


def blocks_of(text: str, page: str) -> list[Block]:
    """The fenced blocks of a page's Markdown.

    Raises:
        ValueError: a fence is not closed.
    """
    found: list[Block] = []
    lines = iter(enumerate(text.splitlines(), 1))
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
            raise ValueError(f"{page}:{number}: the fenced block that starts here is not closed")
        found.append(Block(page, number, start["fence"], start["info"], textwrap.dedent("\n".join(body)).strip("\n")))
    return found


def pages() -> dict[str, str]:
    """The Markdown of every page, by its path below docs/pages."""
    return {path.relative_to(PAGES).as_posix(): path.read_text() for path in sorted(PAGES.rglob("*.md"))}


def blocks() -> list[Block]:
    """The fenced blocks of all pages."""
    return [block for page, text in pages().items() for block in blocks_of(text, page)]


def listed() -> list[dict[str, str]]:
    """The entries of unrunnable.toml: {"hash", "page", "reason"}."""
    return tomllib.loads(LISTED.read_text()).get("block", [])


def by_kind() -> dict[str, list[Block]]:
    """All blocks, by what accounts for them: "embedded", "run", "measures", "listed", or nothing ("unaccounted")."""
    exempt = {(entry["page"], entry["hash"]) for entry in listed()}
    found: dict[str, list[Block]] = {"embedded": [], "run": [], "measures": [], "listed": [], "unaccounted": []}
    for block in blocks():
        if (block.page, block.hash) in exempt:
            found["listed"].append(block)
        elif block.embedded:
            found["embedded"].append(block)
        elif block.measures:
            found["measures"].append(block)
        else:
            found["run" if block.runnable else "unaccounted"].append(block)
    return found


def count() -> dict[str, int]:
    """How many blocks there are of each kind, and how many come from macros ("captured")."""
    captured = sum(len(re.findall(r"\{\{-?\s*(?:capture|output)\(", text)) for text in pages().values())
    return {kind: len(found) for kind, found in by_kind().items()} | {"captured": captured}


def main() -> int:
    """Print the entries that unrunnable.toml lacks; returns the exit status."""
    missing = by_kind()["unaccounted"]
    for block in missing:
        print(
            f'[[block]]  # line {block.line}: {block.info}\nhash = "{block.hash}"\npage = "{block.page}"\nreason = ""\n'
        )
    print("# " + ", ".join(f"{number} {kind}" for kind, number in count().items()))
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
