"""What older rows measured, in words.

Rows of before points had a `part` have a number for it among their sizes: {"component": 3, "rows": 8192}. parts.json
says, by case and by the name of that number, what each number stands for; or, where the number is a size, what runs and
what the size is called now. Records stay as they came.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

KNOWN = Path(__file__).with_name("parts.json")


def in_words(case: str, point: Mapping[str, Any]) -> dict[str, Any]:
    """A point of an older record with its part; one that has a part already as it is."""
    if "part" in point:
        return dict(point)
    part, shape = "", {}
    for name, number in point["shape"].items():
        match _known().get(case, {}).get(name):
            case None:
                shape[name] = number
            case [part, size]:
                shape[size] = number
            case words:
                if (part := words.get(str(number), "")) == "":
                    raise ValueError(f"{case}: expected {name} as one of {', '.join(words)}, got {number}")
    return {**point, "part": part, "shape": shape}


@cache
def _known() -> dict[str, dict[str, Any]]:
    return json.loads(KNOWN.read_text(encoding="utf-8"))
