"""The digest of all that a build of the site reads: where it is the same, the site would be the same.

tests/site/test_build.py compares this list with what a build opened. What the build keeps in .cache under a key of its
contents needs no place here.
"""

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path

from docs.publish import kept
from docs.publish.place import head

READ = (
    "docs", "kernels", "snippets", "tests/__init__.py", "tests/benchmarks", "tests/mutants/rms_norm.toml",
    "tests/snippets/validation/planted", "constraints.txt", "mkdocs.yml", ".cache/notebooks",
)  # fmt: skip
NAMED = "tests"  # a page may link to any file of the repository that is there
LOCAL = "docs/measurements/local"  # this machine's records; what notebooks leave in a folder below is read in any case
SETTINGS = ("SITE_URL", "REPO_URL", "RIDGEPOINT_LOCAL", "RIDGEPOINT_RELEASE", "RIDGEPOINT_PAGE")


def digest(root: Path, settings: Mapping[str, str] = os.environ) -> str:
    """Of the files and versions that a build under these environment variables depends on."""
    local = settings.get("RIDGEPOINT_LOCAL") != "0" and settings.get("RIDGEPOINT_RELEASE") != "1"
    packages = sorted(path.name for path in Path(sysconfig.get_path("purelib")).glob("*.dist-info"))
    commit = settings.get("SOURCE_COMMIT") or head()
    named = sorted(file.relative_to(root).as_posix() for file in _below(root / NAMED))
    given = [settings.get(name) for name in SETTINGS]
    return kept.key(sys.version, packages, commit, given, contents(files(root, local), root), named)


def contents(some: Iterable[Path], folder: Path) -> str:
    """A hash of files, with their names below a folder."""
    found = hashlib.sha256()
    for file in some:
        found.update(f"{file.relative_to(folder).as_posix()}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()


def files(root: Path, local: bool) -> list[Path]:
    """The files of the repository that a build reads: with this machine's measurements where they are local."""
    found = {file for place in READ for file in _below(root / place)}
    return sorted(file for file in found if local or file.parent != root / LOCAL)


def _below(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    return [file for file in place.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
