"""Which numbers come from other versions of torch or Triton than constraints.txt pins."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

NAMES = ("torch", "triton")  # they compile what is timed


def pinned(root: Path) -> dict[str, str]:
    """The pinned versions; of a project without constraints.txt none."""
    file = root / "constraints.txt"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return {name: match[1] for name in NAMES if (match := re.search(rf"^{name}==([^\s;]+)", text, re.M))}


def others(software: Iterable[str], pins: Mapping[str, str]) -> list[str]:
    """The versions of pinned packages that are not the pinned ones: ["torch 2.11.0 (pinned: 2.13.0)"].

    Args:
        software: what runs had, each as in "torch 2.11.0+cu130"; builds of one version are the same.
    """
    found = {text.partition("+")[0] for text in software}
    return [f"{text} (pinned: {pins[name]})" for text in sorted(found)
            if (name := text.partition(" ")[0]) in pins and text != f"{name} {pins[name]}"]  # fmt: skip
