"""A thing has one name everywhere, and what is there is used."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mkdocs.utils.meta import get_data

from docs.publish.generated import census
from docs.publish.markdown import pages
from docs.publish.markdown.fences import INCLUDE
from docs.publish.markdown.pages import PAGES
from docs.publish.site import notebooks
from tests.benchmarks.runner import discover, load
from tests.benchmarks.source import ROOT
from tests.pages.test_scripts import MERGED

TOP = {
    "docs", "snippets", "kernels", "tests", "mkdocs.yml", "noxfile.py", "constraints.txt", "pyproject.toml",
    "README.md", "LICENSE", ".ci", ".github", ".gitignore",
}  # fmt: skip
CHECK = "snippets/environment.py"  # whether a snippet can run here; no page shows it
TORCH = {"torch", "functorch", "triton"}  # functorch comes in torch's wheel


def sources(folder: str) -> list[str]:
    """Python files below a folder of the root, without package markers, as paths from the root."""
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.py"))
    return [file for file in files if not file.endswith("__init__.py") and file != CHECK]


def page_of(name: str) -> Path:
    """The page of a case or a source: docs/pages/kernels/rms-norm.md for "kernels/rms-norm"; the home page differs."""
    return PAGES / ("index.md" if name == "first-speedup" else f"{name}.md")


def name_of(source: str) -> str:
    """ "snippets/patterns/attention.py" is "patterns/attention", "kernels/rms_norm.py" is "kernels/rms-norm"."""
    return str(Path(source).with_suffix("")).removeprefix("snippets/").replace("_", "-")


def test_the_top_level_is_the_product():
    tracked = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert {Path(line).parts[0] for line in tracked.splitlines()} <= TOP


@pytest.mark.parametrize("source", sources("snippets") + sources("kernels"))
def test_every_source_has_its_test(source: str):
    expected = Path("tests") / Path(source).with_name(f"test_{Path(source).name}")
    assert (ROOT / expected).is_file(), f"expected {expected}"


@pytest.mark.parametrize("test", sources("tests/snippets") + sources("tests/kernels"))
def test_every_test_has_its_source(test: str):
    path = Path(test).relative_to("tests")
    if path.name.startswith("test_"):
        name = path.name.removeprefix("test_")  # of a source, or of a tool beside the tests
        named = [path.with_name(name), path.with_name(name).with_suffix(".sh"), Path(test).with_name(name)]
        assert any((ROOT / source).is_file() for source in named)


# ---- pages and what they embed --------------------------------------------------------------------------------------


def includes() -> set[tuple[str, str | None]]:
    """(path, section) of everything that pages include, in a block or a macro, and that notebooks import."""
    found: set[tuple[str, str | None]] = set()
    for text in pages.texts().values():
        lines = (INCLUDE.match(line.strip().removeprefix("> ")) for line in text.splitlines())
        found |= {(match["path"], match["section"]) for match in lines if match}
        found |= {(f"kernels/{name}.py", None) for name in re.findall(r"kernel_file\(\s*[\"']([^\"']+)", text)}
    for notebook in notebooks.sources():
        found |= {(path.relative_to(ROOT).as_posix(), None) for path in notebooks.imports(notebook)}
    return found


@pytest.mark.parametrize("source", sources("snippets") + sources("kernels"))
def test_every_source_is_on_a_page(source: str):
    assert source in {path for path, _ in includes()}, "no page embeds it"


@pytest.mark.parametrize("source", sources("snippets") + sources("kernels"))
def test_every_section_is_on_a_page(source: str):
    marked = set(re.findall(r"\[start:([\w-]+)\]", (ROOT / source).read_text()))
    shown = {section for path, section in includes() if path == source}
    assert marked <= shown, f"embed these or delete their markers: {sorted(marked - shown)}"


def test_every_page_has_front_matter_that_is_read():
    """MkDocs shows what it cannot read, such as a description with a colon, as the page's text, and says nothing."""
    wanted = {"title", "description"}
    assert not [page for page, text in pages.texts().items() if not wanted <= get_data(text)[1].keys()]


@pytest.mark.parametrize("case", discover())
def test_every_case_has_its_page_and_its_name(case: str):
    assert load(discover()[case]).name == case
    assert page_of(case).is_file()
    assert all((ROOT / source).is_file() for source in load(discover()[case]).sources)


@pytest.mark.parametrize("source", sources("snippets") + sources("kernels"))
def test_a_page_with_numbers_has_its_case(source: str):
    page = page_of(name_of(source))
    if page.is_file() and re.search(r"\{\{-?\s*(?:number|chart|table)\(", page.read_text()):
        assert name_of(source) in discover()


# ---- what files import ----------------------------------------------------------------------------------------------


def imports(source: str, everywhere: bool) -> Iterator[tuple[int, str]]:
    """(line, module) of a file's imports: all of them, or those that run when the file is imported."""
    waiting: list[ast.AST] = [ast.parse((ROOT / source).read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""
        elif everywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)


def refused(source: str, allowed: set[str], everywhere: bool = False) -> list[str]:
    """The imports of a file that are neither the standard library's nor among `allowed` (top-level packages)."""
    return [
        f"{source}:{line}: {module}"
        for line, module in imports(source, everywhere)
        if module.partition(".")[0] not in allowed | sys.stdlib_module_names
    ]


@pytest.mark.parametrize("source", sources("kernels"))
def test_a_kernel_stands_alone(source: str):
    brought = TORCH | ({"cuda"} if source.endswith("_cuda.py") else set())  # cuda-bindings, by torch's CUDA builds
    assert not refused(source, brought, everywhere=True)


@pytest.mark.parametrize("source", sources("snippets"))
def test_a_snippet_imports_torch_triton_and_what_its_page_is_about(source: str):
    assert not refused(source, TORCH | {"snippets", "kernels"})


@pytest.mark.parametrize("source", sources("tests/benchmarks") + sources("tests/kernels"))
def test_what_runs_on_a_gpu_machine_needs_little(source: str):
    assert not refused(source, TORCH | {"numpy", "pytest", "snippets", "kernels", "tests"})


# ---- snippets as scripts --------------------------------------------------------------------------------------------


def scripts() -> list[str]:
    """The snippets as modules, without those that another test of the pages runs.

    Those whose page shows the command, tests/pages/test_blocks.py; those merged into one file, test_scripts.py.
    """
    shown = {line for block in census.by_kind()["run"] for line in block.body.splitlines()}
    alone = [source for source in sources("snippets") if source not in MERGED]
    modules = [source.removesuffix(".py").replace("/", ".") for source in alone]
    return [module for module in modules if not any(f"{line} ".startswith(f"python -m {module} ") for line in shown)]


@pytest.mark.parametrize("module", scripts())
def test_a_snippet_runs_as_a_script(module: str, script):
    done = script(module)
    assert done.returncode == 0, done.stderr
