"""Which code a row has measured, or a GPU has run for a page, where the hash with it is not that of the code.

Rows of before functions were hashed have one hash over whole files, and of the method, too. What scripts printed had
one over whole files for longer. Newer ones have the hash of the code, in the canonical form of their time
(tests/benchmarks/functions.py).

earlier.json holds, for each such hash, what the code of its commit reaches, in the form of today. It is made from the
records and the history (`python -m docs.publish.records.earlier`); of whole files, only where those of the commit have
the recorded hash. (What scripts printed with such a hash was held against its commit once: all 45 agree.)
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from docs.publish.place import MEASUREMENTS
from tests.benchmarks.functions import SWEEPS, Code
from tests.benchmarks.reviewed import REVIEWED, UNREVIEWED
from tests.benchmarks.source import ROOT, digest_texts

KNOWN = Path(__file__).with_name("earlier.json")
MISTYPED = {"1282b101dd": "1282b1015ff61c6e7c755ad174a741b83eea3ecf"}  # its files have the hash that was recorded
METHOD = (  # the files that every hash was over
    "snippets/validation/timing.py",
    "snippets/validation/equivalence.py",
    "snippets/validation/roofline.py",
    "tests/benchmarks/case.py",
    "tests/benchmarks/method.py",
    "tests/benchmarks/wrong.py",
)


def code(name: str) -> str:
    """The hash of what was reached, by a hash of files or of code; that itself where nobody knows another."""
    return known().get(name, (name, ""))[0]


def version(name: str) -> int:
    """The version of the method, by a hash of files."""
    return REVIEWED.get(known().get(name, ("", ""))[1], UNREVIEWED)


@cache
def known() -> dict[str, tuple[str, str]]:
    """By a hash of files, those of what was reached and of the method."""
    return {name: (found[0], found[1]) for name, found in json.loads(KNOWN.read_text(encoding="utf-8")).items()}


def plan_of(files: Sequence[str]) -> str:
    """The plan among the files that a sweep measured; empty for a row's."""
    return next((file for file in files if file.startswith(SWEEPS)), "")


def computed() -> dict[str, list[str]]:
    """What earlier.json is to hold.

    Raises:
        subprocess.CalledProcessError: a commit is not in the history here.
    """
    found: dict[str, list[str]] = {}
    for commit, all_sources in recorded().items():
        then = Code.at(commit, ROOT)
        if METHOD[-1] not in then.texts:  # another method, which no version is of
            continue
        for name, (files, of_files) in all_sources.items():
            texts = [(file, then.texts.get(file, "")) for file in {*files, *METHOD}]
            if not of_files or digest_texts(texts) == name:
                found[name] = [then.measured(files[-1], plan_of(files)).hash, then.method().hash]
    for commit, scripts in printed().items():
        then = Code.at(commit, ROOT)
        found |= {name: [then.printed(script).hash, ""] for name, script in scripts.items()}
    return {name: hashes for name, hashes in sorted(found.items()) if name != hashes[0]}


def recorded() -> dict[str, dict[str, tuple[tuple[str, ...], bool]]]:
    """By commit and by hash, the files that its records hold, and whether the hash is of whole ones."""
    found: dict[str, dict[str, tuple[tuple[str, ...], bool]]] = {}
    for path in sorted([*MEASUREMENTS.glob("runs/*.json"), *MEASUREMENTS.glob("sweeps/*/*.json")]):
        record = json.loads(path.read_text(encoding="utf-8"))
        for sources in (row["sources"] for row in record.get("rows", [record])):
            found.setdefault(record["commit"], {})[sources["hash"]] = tuple(sources["files"]), "method" not in sources
    return found


def printed() -> dict[str, dict[str, str]]:
    """By the commit that a GPU ran and by the hash of what a script reached, the script's path."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(MEASUREMENTS.glob("captures/**/*.cuda.json")):
        stored = json.loads(path.read_text(encoding="utf-8"))
        script = stored["script"] if stored["script"].startswith("tests/") else f"snippets/{stored['script']}"
        for run in stored["runs"]:
            if "sources" in run:
                commit = MISTYPED.get(run["commit"], run["commit"])
                found.setdefault(commit, {})[run["sources"]] = f"{script}.py"
    return found


def text(found: dict[str, list[str]]) -> str:
    """As the file holds it, a hash a line."""
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(hashes)}" for name, hashes in found.items())
    return f"{{\n{lines}\n}}\n"


if __name__ == "__main__":
    KNOWN.write_text(text(computed()), encoding="utf-8")
