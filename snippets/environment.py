"""Can this machine run what the site runs? One line for each thing that is missing, instead of a traceback.

`python -m snippets.environment` says so and exits with status 1 if something is missing. Nothing here imports
torch, which may be what is missing.
"""

import importlib.metadata
import os
import re
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

# torch releases that the code is written for: tests ran with 2.11 on a GPU, with 2.13 and 2.15 without one
OLDEST, NEWEST = (2, 11), (2, 15)


def torch_problem() -> str | None:
    """What is wrong with the installed torch, in one line; None if nothing is."""
    expected = f"torch {_dotted(OLDEST)} to {_dotted(NEWEST)}"
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return f"expected {expected}, found none: install it as the README says"
    major, minor = map(int, re.findall(r"\d+", version)[:2])
    return None if OLDEST <= (major, minor) <= NEWEST else f"expected {expected}, found {version}"


def compiler_problem() -> str | None:
    """What torch.compile and Triton lack to build their C++, in one line; None if nothing."""
    compiler = shlex.split(os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++"))[0]
    if shutil.which(compiler) is None:
        return f"torch.compile needs a C++ compiler: expected {compiler}, found none (on Debian: apt-get install g++)"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        remedy = "on Debian: apt-get install python3-dev"
        return f"torch.compile needs Python's headers: expected {header}, found none ({remedy})"
    return None


def require(compiler: bool = False) -> None:
    """End the program with one clear line if torch, or on request the compiler, is not as expected.

    Raises:
        SystemExit: with status 2, after the line went to stderr.
    """
    problem = torch_problem() or (compiler_problem() if compiler else None)
    if problem:
        print(problem, file=sys.stderr)
        raise SystemExit(2)


def require_for_snippet(root: Path) -> None:
    """Require what the snippet that `python -m` is about to run needs: the compiler only if it compiles."""
    module = next((later for flag, later in zip(sys.orig_argv, sys.orig_argv[1:], strict=False) if flag == "-m"), "")
    source = (root / module.replace(".", "/")).with_suffix(".py")
    require(compiler=source.is_file() and "torch.compile" in source.read_text())


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


if __name__ == "__main__":
    found = [problem for problem in (torch_problem(), compiler_problem()) if problem]
    print("\n".join(found) or "everything that the site needs is here")
    sys.exit(1 if found else 0)
