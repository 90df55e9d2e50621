"""A package that ends the process that loads it: its compiler linked the C++ library into the package.

Run `python -m snippets.compiler.ahead_of_time_linked`. It needs a C++ compiler and `readelf`, which comes with it.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from unittest import mock

import torch
from torch import nn
from torch._inductor import config

ROOT = Path(__file__).parents[2]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHARED = "libstdc++.so.6"

# A compiler that links the C++ library statically, as some that are not the system's do without being asked.
STATIC = """#!/bin/sh
case " $* " in
  *" -shared "*) exec {compiler} -static-libstdc++ "$@" ;;
  *) exec {compiler} "$@" ;;
esac
"""


# --8<-- [start:needs]
def needs(package: Path) -> list[str]:
    """The libraries that a package asks for when it is loaded."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(package) as files:
        files.extractall(folder)
        (library,) = Path(folder).rglob("*.so")
        listed = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.+)\]", listed)


# --8<-- [end:needs]


def build(path: Path) -> None:
    """A package of one layer."""
    model, x = nn.Linear(64, 32).to(DEVICE).eval(), torch.ones(8, 64, device=DEVICE)
    with torch.no_grad():
        program = torch.export.export(model, (x,))
    known = {"cpp.vec_isa_ok": False}  # the one product is left to a library: there is nothing for a processor in it
    torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=known)


def load(path: str) -> None:
    """For a process of its own: the loader alone, without the trial compilations of `aoti_load_package`."""
    model = torch._C._aoti.AOTIModelPackageLoader(path, "model", False, 1, -1)
    print(f"returns {len(model.boxed_run([torch.ones(8, 64, device=DEVICE)])[0])} rows")


def tried(static: bool, folder: Path) -> str:
    """Build a package with the usual compiler, or one that links statically; say what it needs, and load it."""
    compiler, package, path = config.cpp.cxx[1], folder / f"{'static' if static else 'usual'}.pt2", os.environ["PATH"]
    if static:  # it is found before the other of its name, and so shares the compiled headers of that
        wrapper = folder / Path(compiler).name
        wrapper.write_text(STATIC.format(compiler=shlex.quote(shutil.which(compiler) or compiler)))
        wrapper.chmod(0o755)
        compiler, path = wrapper.name, f"{folder}{os.pathsep}{path}"
    with config.patch({"cpp.cxx": (None, compiler)}), mock.patch.dict(os.environ, PATH=path):
        build(package)
    command = [sys.executable, "-m", "snippets.compiler.ahead_of_time_linked", str(package)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = re.search(r"^Error: .*", done.stderr, re.MULTILINE)
    ended = signal.Signals(-done.returncode).name if done.returncode < 0 else done.stdout.strip()
    return f"{'yes' if SHARED in needs(package) else 'no':<22}{said[0] if said else ended}"


def main(ways: tuple[bool, ...] = (False, True)) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [tried(static, Path(folder)) for static in ways]
    print("==== linked")
    print(f"{'linked with':<22}{'needs ' + SHARED:<22}loaded")
    for static, row in zip(ways, rows, strict=True):
        print(f"{'-static-libstdc++' if static else 'the usual options':<22}{row}")


if __name__ == "__main__":
    if sys.argv[1:]:
        load(sys.argv[1])
    else:
        main()
