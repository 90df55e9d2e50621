"""Imports run one way: what is proven does not know its proof, and the path of a number never leads back."""

import ast

import pytest

from tests.benchmarks.imports import imported
from tests.benchmarks.source import ROOT

READ = "docs/pages", "docs/publish", "docs/theme", "kernels", "snippets/**/*", "tests/"  # all that is ours

# Each part may import itself and those above it. The contributor's guide draws them.
PARTS = (
    ("kernels",),
    ("snippets",),
    ("docs.pages",),  # the notebooks
    ("tests.benchmarks",),
    tuple(f"docs.publish.{module}" for module in ("errors", "kept", "units", "place", "palette", "markup")),
    ("docs.publish.markdown",),
    ("docs.publish.records",),
    ("docs.publish.evidence",),
    ("docs.publish.compiled",),
    ("docs.publish.macros",),
    ("docs.publish.generated",),
    ("docs.publish.site",),
    ("noxfile",),
    ("tests",),
)
LEVELS = {name: level for level, names in enumerate(PARTS) for name in names}
OURS = {name.partition(".")[0] for name in LEVELS}


def files() -> list[str]:
    """Every Python file of ours, as a path from the root."""
    found = [path for top in OURS for path in ((ROOT / top).rglob("*.py") if (ROOT / top).is_dir() else [])]
    found = [path for path in found if not path.is_relative_to(ROOT / "docs" / "measurements")]  # what compilers wrote
    return sorted(path.relative_to(ROOT).as_posix() for path in [*found, ROOT / "noxfile.py"])


def part_of(module: str) -> str | None:
    """The part that a module, or a name in one, belongs to; the longest name that fits."""
    fitting = [name for name in LEVELS if f"{module}.".startswith(f"{name}.")]
    return max(fitting, key=len, default=None)


def against_the_arrows(path: str, text: str) -> list[str]:
    """The imports of a file that its part may not have, as "FILE:LINE: ..."."""
    module = path.removesuffix(".py").replace("/", ".")
    importer = part_of(module.removesuffix(".__init__"))
    return [
        f"{path}:{each.line}: {importer or 'a part that the table lacks'} may not import {each.path}"
        for each in imported(ast.parse(text), module.rpartition(".")[0])
        if each.path.partition(".")[0] in OURS
        if importer is None or LEVELS.get(part_of(each.path) or "", len(PARTS)) > LEVELS[importer]
    ]


def test_the_list_of_publishs_parts_is_the_same():
    said = ast.get_docstring(ast.parse((ROOT / "docs/publish/__init__.py").read_text())) or ""
    lines = said.partition(":\n\n")[2].splitlines()
    listed = [tuple(f"docs.publish.{name}" for name in line.partition("  ")[0].split(", ")) for line in lines]
    assert listed == [names for names in PARTS if names[0].startswith("docs.publish.")]


def test_a_file_imports_only_from_above():
    found = [line for path in files() for line in against_the_arrows(path, (ROOT / path).read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("kernels/rope.py", "from snippets.validation import timing"),
        ("kernels/rope.py", "from tests.benchmarks import sides"),
        ("snippets/first_speedup.py", "import tests.benchmarks.source"),
        ("snippets/first_speedup.py", "from docs import publish"),
        ("tests/benchmarks/runner.py", "from docs.publish import units"),
        ("tests/benchmarks/runner.py", "from tests import report"),
        ("docs/publish/records/store.py", "from docs.publish.macros import tables"),
        ("docs/publish/records/store.py", "from ..macros import tables"),
        ("docs/publish/records/__init__.py", "from ..macros import tables"),
        ("docs/publish/macros/tables.py", "def table():\n    import docs.publish.site.hooks"),
        ("docs/publish/compiled/explorer.py", "from docs.publish.macros.render import Page"),
        ("docs/publish/units.py", "from docs.publish.records import store"),
        ("docs/publish/units.py", "from docs.publish import lookups"),
        ("docs/publish/lookups.py", "from docs.publish import units"),
        ("docs/publish/macros/tables.py", "from tests.pages import tiny"),
    ],
)
def test_an_import_that_leads_back_is_named(path: str, line: str):
    """A planted import, in a file of ours or beside it."""
    text = (ROOT / path).read_text() if (ROOT / path).exists() else ""
    (refused,) = against_the_arrows(path, f"{text}\n{line}\n")
    assert refused.startswith(f"{path}:{len(text.splitlines()) + 1 + len(line.splitlines())}: ")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("snippets/first_speedup.py", "from kernels import rope"),
        ("docs/publish/macros/tables.py", "from docs.publish.records.store import Store"),
        ("docs/publish/macros/tables.py", "from tests.benchmarks.source import ROOT"),
        ("docs/publish/macros/tables.py", "from . import charts"),
        ("tests/pages/test_records.py", "from docs.publish.site import hooks"),
    ],
)
def test_an_import_from_above_passes(path: str, line: str):
    assert not against_the_arrows(path, line)
