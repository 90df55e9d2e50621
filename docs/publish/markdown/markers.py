"""The markers of embedded sections: each start has one end.

An include whose end marker is missing silently runs to the end of the file.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

MARKER = re.compile(r"^.*--8<--[ \t]+\[[ \t]*(?P<kind>\w+)[ \t]*:[ \t]*(?P<name>[^\]]*?)[ \t]*\].*$")
SUSPECT = re.compile(r"--8<-|\[[ \t]*(?:start|end)[ \t]*:")
NAME = re.compile(r"[a-z][-_0-9a-z]*")


def problems(root: Path, folders: Iterable[str]) -> list[str]:
    """What is wrong with the markers of all files in these folders, a line each."""
    files = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
    return [
        f"{path.relative_to(root).as_posix()}{problem}"
        for path in files
        for problem in check(path.read_text(encoding="utf-8"))
    ]


def check(text: str) -> Iterator[str]:
    """What is wrong with the markers of a file: ":LINE: ..." each."""
    lines: dict[str, dict[str, int]] = {"start": {}, "end": {}}
    starts, ends = lines.values()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.lstrip().startswith("#") or not SUSPECT.search(line):
            continue
        marker = MARKER.match(line)
        if not marker or marker["kind"] not in lines or not NAME.fullmatch(marker["name"]):
            yield f":{number}: expected '# --8<-- [start:name]' or '[end:name]', got {line.strip()!r}"
            continue
        seen = lines[marker["kind"]]
        if marker["name"] in seen:
            yield f":{number}: expected one [{marker['kind']}:{marker['name']}], got a second one"
        seen[marker["name"]] = number
    for name, number in starts.items():
        if name not in ends:
            yield f":{number}: expected an [end:{name}] for [start:{name}], got none"
        elif ends[name] < number:
            yield f":{number}: expected [end:{name}] after [start:{name}], got it before, in line {ends[name]}"
    for name, number in ends.items():
        if name not in starts:
            yield f":{number}: expected a [start:{name}] for [end:{name}], got none"


def without(text: str) -> str:
    """A file's text without its markers, as pages show it."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if "--8<--" not in line or not MARKER.match(line.rstrip("\n")))
