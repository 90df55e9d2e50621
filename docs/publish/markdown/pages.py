"""The pages as they are written, read once in a build or a test run."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from docs.publish.errors import PublishError
from docs.publish.kept import in_a_build
from tests.benchmarks.source import ROOT

PAGES = ROOT / "docs" / "pages"
FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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
