"""The pages as they are written, read once in a build or a test run."""

from functools import cache

from tests.benchmarks.source import ROOT

PAGES = ROOT / "docs" / "pages"


@cache
def texts() -> dict[str, str]:
    """The Markdown of every page, by the page's path below docs/pages."""
    return {
        path.relative_to(PAGES).as_posix(): path.read_text(encoding="utf-8") for path in sorted(PAGES.rglob("*.md"))
    }


def forget() -> None:
    """Read the pages again: they may have changed since the last build."""
    texts.cache_clear()
