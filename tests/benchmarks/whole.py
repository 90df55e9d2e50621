"""Writes records: a reader, or an interruption, never meets half of one."""

import json
import os
from pathlib import Path


def write_whole(path: Path, content: dict) -> None:
    """Write JSON beside its place and move it there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.partial")
    try:
        beside.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
