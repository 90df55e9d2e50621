"""Accounts for every fenced block on every page.

A block is *embedded* (all of it comes from tested files), it *runs* (tests/pages/test_blocks.py runs it), it *measures*
cases (a test holds that they exist), or it is *listed* in unrunnable.toml, by hash and with the reason.
`python -m docs.publish.generated.census` shows what is missing there.
"""

import re
import sys
import tomllib
from pathlib import Path

from docs.publish.markdown import pages
from docs.publish.markdown.fences import Block, blocks_of

LISTED = Path(__file__).with_name("unrunnable.toml")


def blocks() -> list[Block]:
    """The fenced blocks of all pages."""
    return [block for page, text in pages.texts().items() for block in blocks_of(text, page)]


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
    captured = sum(len(re.findall(r"\{\{-?\s*output\(", text)) for text in pages.texts().values())
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
