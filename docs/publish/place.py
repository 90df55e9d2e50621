"""Where things are: addresses on the site, relative to a page, and in the repository."""

import os
import posixpath
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.benchmarks.source import ROOT

MEASUREMENTS = ROOT / "docs" / "measurements"
REPOSITORY = "https://github.com/ridgepoint-guide/ridgepoint"
CUDA = "_cuda"  # at the end of a name: kernels/swiglu_cuda.py launches what is in kernels/swiglu.cu
SITE = "https://ridgepoint-guide.github.io/ridgepoint/"


@dataclass(frozen=True)
class Place:
    """A page, from which links are relative.

    Attributes:
        path: the page's source below docs/pages: "kernels/rms-norm.md".
        url: its address below the site's: "kernels/rms-norm/".
        site_url: the site's address, with a slash at its end.
        repository: the repository's address.
    """

    path: str
    url: str
    site_url: str = SITE
    repository: str = REPOSITORY

    def to(self, target: str) -> str:
        """A relative link to an address below the site's: "results/nvidia-h200.json"."""
        path, hash_, anchor = target.partition("#")
        relative = posixpath.relpath(path or ".", self.url or ".")
        return relative + ("/" if path.endswith("/") else "") + hash_ + anchor

    def source(self, file: str, commit: str | None = None) -> str:
        """A file in the repository, at a commit if one is given."""
        return f"{self.repository}/blob/{commit or head()}/{file}"


@cache
def head() -> str:
    """The commit that is built: SOURCE_COMMIT, else that of the checkout, else the main branch."""
    if given := os.environ.get("SOURCE_COMMIT"):
        return given
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "main"


def case_file(root: Path, name: str) -> Path:
    """Where the case of that name is, or would be."""
    return root / "tests" / "benchmarks" / f"{name.replace('-', '_')}.py"


def kernel_files(root: Path = ROOT) -> dict[str, Path]:
    """The kernels to copy that are in Triton, by name."""
    return {name: path for name, path in _copied(root).items() if not path.stem.endswith(CUDA)}


def cuda_files(root: Path = ROOT) -> dict[str, tuple[Path, Path]]:
    """The kernels to copy that are in CUDA C++, by name: the Python file and its source, which go together."""
    return {
        name: (path, path.with_name(f"{name.removesuffix(CUDA)}.cu"))
        for name, path in _copied(root).items()
        if path.stem.endswith(CUDA)
    }


def _copied(root: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted((root / "kernels").glob("*.py")) if path.stem != "__init__"}


def machine_page(slug: str, anchor: str = "", case: str = "") -> str:
    """The address below the site's of a machine's page, with the rows of a case if one is given."""
    asked = f"?rows={case.replace('/', '-')}" if case else ""
    return f"results/machines/{slug}/{asked}{'#' if anchor else ''}{anchor}"


def rows_file(slug: str, case: str) -> str:
    """The file of a case's rows, as deep as the page that loads it: from both, its links lead to the same places."""
    return f"results/rows/{slug}/{case.replace('/', '-')}.html"
