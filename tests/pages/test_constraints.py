"""constraints.txt pins everything that is imported, and everything that those need."""

import re
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.pages.census import ROOT
from tests.pages.test_house import imports, sources

OURS = {path.name for path in ROOT.iterdir()} | {path.stem for path in ROOT.glob("*.py")}
PEERS = {"liger_kernel", "quack"}  # measured where they are installed
LINES = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
PINS = {canonicalize_name(Requirement(line).name): Requirement(line) for line in LINES if line}


def imported() -> dict[str, str]:
    """Top-level modules that are neither ours nor the standard library's, with a place where each is imported."""
    found = {}
    for folder in ("docs/publish", "snippets", "kernels", "tests"):
        for source in sources(folder):
            for line, module in imports(source, everywhere=True):
                found[module.partition(".")[0]] = f"{source}:{line}"
    return {name: at for name, at in found.items() if name not in OURS | PEERS | sys.stdlib_module_names}


@pytest.mark.parametrize("module", imported())
def test_what_is_imported_is_pinned(module: str):
    owners = metadata.packages_distributions().get(module, [])
    if not owners:  # a kernel copied into an empty folder is imported by its bare name
        assert (ROOT / "kernels" / f"{module}.py").is_file(), f"{imported()[module]}: not installed"
    assert all(canonicalize_name(owner) in PINS for owner in owners), f"{imported()[module]}: pin one of {owners}"


@pytest.mark.parametrize("name", PINS)
def test_a_pin_is_exact_and_installed(name: str):
    (specifier,) = PINS[name].specifier
    assert specifier.operator == "=="
    if PINS[name].marker is None or PINS[name].marker.evaluate():
        assert metadata.version(name).partition("+")[0] == specifier.version


@pytest.mark.parametrize("name", PINS)
def test_what_a_package_needs_is_pinned(name: str):
    if PINS[name].marker is not None and not PINS[name].marker.evaluate():
        return
    needs = [Requirement(need) for need in metadata.requires(name) or []]
    needed = {
        canonicalize_name(need.name) for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})
    }
    cuda = {need for need in needed if re.match(r"nvidia-|cuda-", need)}  # torch pins these itself
    assert needed - cuda <= PINS.keys()
