"""Who a page is for and how long it takes, for the line under its title."""

import math
import re
from collections.abc import Mapping
from typing import Any

from mkdocs.utils.meta import get_data

from docs.publish.errors import unknown

LEVELS = ("beginner", "intermediate", "advanced")
WORDS_A_MINUTE = 200


def minutes(markdown: str) -> int:
    """Minutes to read a page's prose; front matter, macros and tags don't count, nor does embedded code."""
    markdown, _ = get_data(markdown)
    left_out = r"\{\{.*?\}\}|\{%.*?%\}|</?[A-Za-z!][^>]*>"  # a tag, and not "2 < n", which would end at some far ">"
    words = re.findall(r"\b[A-Za-z]{2,}\b", re.sub(left_out, "", markdown, flags=re.DOTALL))
    return max(1, math.ceil(len(words) / WORDS_A_MINUTE))


def check(meta: Mapping[str, Any]) -> None:
    """Raises: PublishError: the front matter states a level that is not one of `LEVELS`."""
    if meta.get("level", LEVELS[0]) not in LEVELS:
        raise unknown("level", meta["level"], LEVELS)
