"""The pages as they are written, read once in a build or a test run."""

from functools import cache
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.benchmarks.source import ROOT

PAGES = ROOT / "docs" / "pages"
FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
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


def forget() -> None:
    """Read the pages again: they may have changed since the last build."""
    texts.cache_clear()
