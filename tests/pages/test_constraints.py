"""constraints.txt pins everything that is imported, and everything that those need."""

import ast
import re
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.benchmarks.imports import imported
from tests.benchmarks.source import ROOT
from tests.pages.test_house import sources

OURS = {path.name for path in ROOT.iterdir()} | {path.stem for path in ROOT.glob("*.py")}
PEERS = {"liger_kernel", "quack", "flash_attn", "cuda"}  # measured, or shown, where they are installed
LINES = [line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
PINS = {canonicalize_name(Requirement(line).name): Requirement(line) for line in LINES if line}


def foreign() -> dict[str, str]:
    """Top-level modules that are neither ours nor the standard library's, with a place where each is imported."""
    found = {}
    for folder in ("docs/publish/", "snippets/", "kernels/", "tests/"):
        for source in sources(folder):
            for each in imported(ast.parse((ROOT / source).read_text()), ".".join(Path(source).parent.parts)):
                found[each.module.partition(".")[0]] = f"{source}:{each.line}"
    return {name: at for name, at in found.items() if name not in OURS | PEERS | sys.stdlib_module_names}


def required() -> list[str]:
    """The pinned packages that belong on this platform."""
    return [name for name, pin in PINS.items() if pin.marker is None or pin.marker.evaluate()]


def test_what_is_imported_is_pinned():
    owners = metadata.packages_distributions()
    for module, at in foreign().items():
        if (ROOT / "kernels" / f"{module}.py").is_file():  # copied alone, a kernel is imported by its bare name
            continue
        assert {canonicalize_name(owner) for owner in owners.get(module, ["nothing installed"])} <= PINS.keys(), at


def test_pins_are_exact_and_installed():
    assert all([specifier.operator for specifier in pin.specifier] == ["=="] for pin in PINS.values())
    installed = {name: metadata.version(name).partition("+")[0] for name in required()}
    assert installed == {name: str(PINS[name].specifier).removeprefix("==") for name in required()}


def test_what_a_package_needs_is_pinned():
    for name in required():
        needs = [Requirement(need) for need in metadata.requires(name) or []]
        needed = {
            canonicalize_name(need.name) for need in needs if not need.marker or need.marker.evaluate({"extra": ""})
        }
        cuda = {need for need in needed if re.match(r"nvidia-|cuda-", need)}  # torch pins these itself
        assert needed - cuda <= PINS.keys(), name
