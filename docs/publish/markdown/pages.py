"""The pages as they are written, read once in a build or a test run; who each is for, and how long it takes."""

import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from docs.publish.errors import PublishError, unknown
from docs.publish.kept import in_a_build
from tests.benchmarks.source import ROOT

PAGES = ROOT / "docs" / "pages"
FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
LEVELS = ("beginner", "intermediate", "advanced")
WORDS_A_MINUTE = 200


@in_a_build
def texts() -> dict[str, str]:
    """The Markdown of every page, by the page's path below docs/pages."""
    return {
        path.relative_to(PAGES).as_posix(): path.read_text(encoding="utf-8") for path in sorted(PAGES.rglob("*.md"))
    }


@cache
def front_matter(text: str) -> dict[str, Any]:
    """What a page says about itself above its text: its title, and what else belongs to it."""
    head, end, _ = text.removeprefix("---\n").partition("\n---\n")
    return yaml.load(head, Loader=FAST) if end and text.startswith("---\n") else {}


def front_matters(root: Path = ROOT) -> dict[str, dict[str, Any]]:
    """What each page says about itself, by the page's path below docs/pages.

    Raises:
        PublishError: it is no YAML.
    """
    folder = root / "docs" / "pages"
    found = {}
    for path in sorted(folder.rglob("*.md")):
        page = path.relative_to(folder).as_posix()
        try:
            found[page] = front_matter(path.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise PublishError(f"{page}: expected front matter in YAML, got {' '.join(str(error).split())}") from error
    return found


def minutes(markdown: str) -> int:
    """Minutes to read a page's prose; front matter, macros and tags don't count, nor does embedded code."""
    body = markdown.partition("\n---\n")[2] if markdown.startswith("---\n") else markdown
    left_out = r"\{\{.*?\}\}|\{%.*?%\}|</?[A-Za-z!][^>]*>"  # a tag, and not "2 < n", which would end at some far ">"
    words = re.findall(r"\b[A-Za-z]{2,}\b", re.sub(left_out, "", body, flags=re.DOTALL))
    return max(1, math.ceil(len(words) / WORDS_A_MINUTE))


def check(meta: Mapping[str, Any]) -> None:
    """Raises: PublishError: the front matter states a level that is not one of `LEVELS`."""
    if meta.get("level", LEVELS[0]) not in LEVELS:
        raise unknown("level", meta["level"], LEVELS)
