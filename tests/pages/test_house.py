"""A thing has one name everywhere, and what is there is used."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mkdocs.utils.meta import get_data

from docs.publish.generated import census
from docs.publish.macros.catalogue import NUMBERS, Macros
from docs.publish.markdown import pages
from docs.publish.markdown.fences import INCLUDE
from docs.publish.markdown.pages import PAGES
from docs.publish.markdown.scripts import START, package_of
from docs.publish.site import notebooks
from tests.benchmarks.functions import module_of
from tests.benchmarks.imports import files, imported
from tests.benchmarks.runner import discover
from tests.benchmarks.source import ROOT
from tests.pages.test_scripts import MERGED

READ = "docs/pages", "docs/publish", "docs/theme", "kernels", "snippets/**/*", "tests/"  # all that is ours

TOP = {
    "docs", "snippets", "kernels", "tests", "mkdocs.yml", "noxfile.py", "constraints.txt", "pyproject.toml",
    "README.md", "LICENSE", ".ci", ".github", ".gitignore",
}  # fmt: skip
OURS = "docs", "kernels", "snippets", "tests"
MEASUREMENTS = ROOT / "docs" / "measurements"
EMBEDDABLE = "snippets", "kernels"  # the folders whose files pages embed
CHECK = "snippets/environment.py"  # whether a snippet can run here; no page shows it
ELSEWHERE = {"first-speedup": "examples/one-block", "kernels/matmul-steps-gluon": "kernels/matmul-steps"}
TORCH = {"torch", "functorch", "triton"}  # functorch comes in torch's wheel


def sources(*folders: str) -> list[str]:
    """Python files below folders of the root, without package markers, as paths from the root."""
    files = sorted(path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [file for file in files if not file.endswith("__init__.py") and file != CHECK]


def page_of(name: str) -> Path:
    """The page of a case or a source: docs/pages/kernels/rms-norm.md for "kernels/rms-norm"; of two, another name."""
    return PAGES / f"{ELSEWHERE.get(name, name)}.md"


def name_of(source: str) -> str:
    """ "snippets/patterns/attention.py" is "patterns/attention", "kernels/rms_norm.py" is "kernels/rms-norm"."""
    return str(Path(source).with_suffix("")).removeprefix("snippets/").replace("_", "-")


def test_the_top_level_is_the_product():
    tracked = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert {Path(line).parts[0] for line in tracked.splitlines()} <= TOP


def test_every_source_has_its_test():
    expected = ["tests" / Path(source).with_name(f"test_{Path(source).name}") for source in sources(*EMBEDDABLE)]
    missing = [str(test) for test in expected if not (ROOT / test).is_file()]
    assert not missing, f"expected these tests: {missing}"


def test_every_test_has_its_source():
    def tested(test: Path) -> list[Path]:
        """What the test's name says that it tests: a source, or a tool beside the tests."""
        name = test.name.removeprefix("test_")
        source = test.relative_to("tests").with_name(name)
        return [source, source.with_suffix(".sh"), test.with_name(name)]

    tests = [Path(file) for file in sources("tests/snippets", "tests/kernels") if Path(file).name.startswith("test_")]
    lost = [str(test) for test in tests if not any((ROOT / source).is_file() for source in tested(test))]
    assert not lost, f"these test nothing that exists: {lost}"


# ---- pages and what they embed --------------------------------------------------------------------------------------


def includes() -> set[tuple[str, str | None]]:
    """(path, section) of everything that pages include, in a block or a macro, and that notebooks import."""
    found: set[tuple[str, str | None]] = set()
    for text in pages.texts().values():
        lines = (INCLUDE.match(line.strip().removeprefix("> ")) for line in text.splitlines())
        found |= {(match["path"], match["section"]) for match in lines if match}
        found |= {(f"kernels/{name}.py", None) for name in re.findall(r"kernel_file\(\s*[\"']([^\"']+)", text)}
    for notebook in notebooks.sources():
        found |= {(path.relative_to(ROOT).as_posix(), None) for path in files(notebook, ROOT)}
    return found


def copied(source: str) -> str:
    """What a reader copies of a source: the file, or the folder of a tool, which begins in its `__main__.py`."""
    above = [folder.as_posix() for folder in Path(source).parents if (ROOT / folder / "__main__.py").is_file()]
    return above[-1] if above else source


def test_every_source_is_on_a_page():
    unseen = set(map(copied, sources(*EMBEDDABLE))) - {copied(path) for path, _ in includes()}
    assert not unseen, f"no page embeds these: {sorted(unseen)}"


def test_every_section_is_on_a_page():
    marked = {
        (source, section)
        for source in sources(*EMBEDDABLE)
        for section in re.findall(r"\[start:([\w-]+)\]", (ROOT / source).read_text())
    }
    unseen = sorted(marked - includes())
    assert not unseen, f"embed these or delete their markers: {unseen}"


def test_every_page_has_front_matter_that_is_read():
    """MkDocs shows what it cannot read, such as a description with a colon, as the page's text, and says nothing."""
    wanted = {"title", "description"}
    assert not [page for page, text in pages.texts().items() if not wanted <= get_data(text)[1].keys()]


def test_every_case_has_its_page():
    missing = sorted(name for name in discover() if not page_of(name).is_file())
    assert not missing, f"cases without a page: {missing}"


FROM_ELSEWHERE = {"bound", "captured", "ceiling", "counted", "datasheet", "machine"}  # they need no case of the page


def test_a_page_with_numbers_has_its_case():
    numbers = re.compile(rf"\{{\{{-?\s*(?:{'|'.join({*NUMBERS, 'chart', 'table'} - FROM_ELSEWHERE)})\(")
    without = {name_of(source) for source in sources(*EMBEDDABLE)} - discover().keys()
    pages = {name: page_of(name) for name in sorted(without)}
    found = [name for name, page in pages.items() if page.is_file() and numbers.search(page.read_text())]
    assert not found, f"pages with numbers, without a case in tests/benchmarks: {found}"


def test_front_matter_says_what_is_read():
    """A word that nothing reads, such as one that is misspelt, has no effect, and nobody notices."""
    read = {"title", "description", "level", "template", "reading_time", "search"}  # by the theme and by hooks.py
    read |= {"case", "typical", "rows", *(name for name in dir(Macros) if name[0] != "_")}  # macros/entries.py
    read |= {"listed"}  # by docs/publish/compiled/build.py
    read |= {"measured_on"}  # by macros/catalogue.py and macros/page.py
    read |= {"found_first", "found_in_three"}  # by tests/site/test_search.py
    unread = {page: unknown for page, said in pages.front_matters().items() if (unknown := said.keys() - read)}
    assert not unread, f"nothing reads these words of front matter: {unread}"


# ---- what files import ----------------------------------------------------------------------------------------------


def refused(files: list[str], allowed: set[str], everywhere: bool = False) -> list[str]:
    """The imports of files that are neither the standard library's nor among `allowed` (top-level packages)."""
    return [
        f"{file}:{each.line}: {each.module}"
        for file in files
        for each in imported(ast.parse((ROOT / file).read_text()), package_of(file), in_functions=everywhere)
        if each.module.partition(".")[0] not in allowed | sys.stdlib_module_names
    ]


def test_a_kernel_stands_alone():
    cuda = [source for source in sources("kernels") if source.endswith("_cuda.py")]
    others = [source for source in sources("kernels") if source not in cuda]
    assert not refused(others, TORCH, everywhere=True)
    assert not refused(cuda, TORCH | {"cuda"}, everywhere=True)  # cuda-bindings, which torch's CUDA builds bring


def test_a_snippet_imports_torch_triton_and_what_its_page_is_about():
    assert not refused(sources("snippets"), TORCH | {"snippets", "kernels"})


def test_what_runs_on_a_gpu_machine_needs_little():
    here = sources("tests/benchmarks", "tests/kernels")
    assert not refused(here, TORCH | {"numpy", "pytest", "snippets", "kernels", "tests"})


# ---- snippets as scripts --------------------------------------------------------------------------------------------


FEWER = {"snippets/kernels/fp8_matmul_error.py"}  # whose own test calls `main`, with smaller inputs


def scripts() -> list[str]:
    """The snippets that do something as scripts, without those that another test runs.

    Those whose page shows the command, tests/pages/test_blocks.py; those merged into one file, test_scripts.py; a tool
    of several files, the test of its `__main__.py`.
    """
    shown = {line for block in census.by_kind()["run"] for line in block.body.splitlines()}
    alone = [source for source in sources("snippets") if source not in {*MERGED, *FEWER} and copied(source) == source]
    texts = {source: (ROOT / source).read_text() for source in alone}
    begin = [source for source, text in texts.items() if START in text or module_of(source, text).runs]
    modules = [source.removesuffix(".py").replace("/", ".") for source in begin]
    return [module for module in modules if not any(f"{line} ".startswith(f"python -m {module} ") for line in shown)]


@pytest.mark.parametrize("module", scripts())
def test_a_snippet_runs_as_a_script(module: str, script):
    done = script(module)
    assert done.returncode == 0, done.stderr


# ---- rooms of the right size ----------------------------------------------------------------------------------------

MOST_LINES = {ast.FunctionDef: 60, ast.AsyncFunctionDef: 60, ast.ClassDef: 250}  # without the docstring
# Longer ones, with their lines. The list only shrinks.
LARGE = {
    "tests/benchmarks/examples/llama.py:alone": 63,
    "tests/benchmarks/patterns/attention_padding.py:prepare": 72,
}


@functools.cache
def large() -> dict[str, int]:
    """The lines of functions and classes above the limit; device code, which splitting would change, is left out."""
    every = [ROOT / "noxfile.py", *(path for folder in OURS for path in (ROOT / folder).rglob("*.py"))]
    files = [path for path in every if not path.is_relative_to(MEASUREMENTS)]  # notebooks leave unfinished code there
    found = {}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if type(node) in MOST_LINES and not any("triton.jit" in ast.unparse(each) for each in node.decorator_list):
                lines = lines_of(node)
                if lines > MOST_LINES[type(node)]:
                    found[f"{path.relative_to(ROOT).as_posix()}:{node.name}"] = lines
    return found


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    """From its first line to its last, but for the docstring: a manual may be as long as its reader needs."""
    first = node.body[0]
    said = first.end_lineno - first.lineno + 1 if ast.get_docstring(node) is not None else 0
    return node.end_lineno - node.lineno + 1 - said


def test_functions_and_classes_are_small():
    grown = {name: lines for name, lines in large().items() if lines > LARGE.get(name, 0)}
    assert not grown, f"expected at most 60 lines of a function and 250 of a class, got {grown}: split them by purpose"


def test_the_list_of_large_ones_only_shrinks():
    small = sorted(LARGE.keys() - large().keys())
    assert not small, f"these are no longer large, or gone; delete them from LARGE: {small}"
