"""Each file that a page embeds is one script to paste: complete, and it runs in an empty folder."""

import ast
import builtins
import functools
import re
import runpy
import subprocess
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import nbclient
import nbformat
import pytest

from docs.publish import kept
from docs.publish.errors import PublishError
from docs.publish.macros import kernel_files
from docs.publish.markdown import elsewhere, markers, pages, scripts
from docs.publish.markdown.fences import blocks_of
from docs.publish.place import Place
from tests import remembered
from tests.benchmarks.imports import imported, of_statement
from tests.benchmarks.source import ROOT

READ = "docs/pages", "tests/benchmarks", "tests/forked.py"  # through docs.publish, and to run scripts in

Forked = Callable[..., subprocess.CompletedProcess[str]]
EMBEDDED = sorted({path for page, text in pages.texts().items() for path in scripts.embedded(text, page)})
CARRIED = [path for path in EMBEDDED if path.startswith("snippets/") and "\nFILES = {" in scripts.script(path)]
WHOLE = [path for path in EMBEDDED if path.startswith("snippets/") and path not in CARRIED]
MERGED = [path for path in WHOLE if len(scripts.reached(path)) > 1]
PROGRAMS = [path for path in MERGED if scripts.START in (ROOT / path).read_text()]
PARTS = [path for path in MERGED if path not in PROGRAMS]


def unresolved(text: str) -> set[str]:
    """Names that some part of a file takes from its top level, and that stand neither there nor in Python."""
    top = symtable.symtable(text, "script", "exec")
    known = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    return {
        name for name in taken(text) - known if not hasattr(builtins, name) and name not in ("__file__", "__spec__")
    }


def taken(text: str) -> set[str]:
    """Names that some part of a text takes from the top level."""
    found, waiting = set(), [symtable.symtable(text, "script", "exec")]
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        found |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced()}
    return found


def ours_in(text: str) -> list[str]:
    return re.findall(r"^\s*(?:from|import) +(?:snippets|kernels|tests|docs)\b.*", text, re.M)


# ---- the site's -----------------------------------------------------------------------------------------------------


def test_every_page_with_code_of_ours_has_scripts():
    """And no two files have one address: kernels are served beside snippets of their track."""
    assert EMBEDDED
    addresses = [
        scripts.served(path) for path in {*EMBEDDED, *(f"kernels/{file.name}" for file in ROOT.glob("kernels/*.py"))}
    ]
    assert len(set(addresses)) == len(addresses)


def test_every_script_is_complete():
    lacking = {path: names for path in EMBEDDED if (names := unresolved(scripts.script(path)))}
    assert not lacking, f"names that nothing in the script defines: {lacking}"
    ours = {path: lines for path in EMBEDDED if path not in CARRIED and (lines := ours_in(scripts.script(path)))}
    assert not ours, f"imports of files that the reader does not have: {ours}"
    marked = [path for path in WHOLE if "--8<--" in scripts.script(path)]
    assert not marked, f"markers of sections in scripts: {marked}"


def body(text: str) -> list[str]:
    """The statements of a file below its docstring."""
    return [ast.dump(node) for node in ast.parse(text).body[1:]]


def test_a_file_that_stands_alone_is_its_script():
    """So whatever test runs the file has run the script."""
    alone = {path: scripts.COMMAND.sub(r"python \1.py", (ROOT / path).read_text()) for path in set(WHOLE) - set(MERGED)}
    assert alone
    different = [path for path, source in alone.items() if body(scripts.script(path)) != body(source)]
    assert not different


@pytest.mark.parametrize("path", PROGRAMS)
def test_a_merged_script_runs_as_its_module_does(
    path: str, tmp_path: Path, script: Forked, forked: Forked, once: Forked, key: Callable[..., Path]
):
    """The module runs, its script says the same, and what this defines can be defined in an empty folder."""
    text = scripts.script(path)
    module = path.removesuffix(".py").replace("/", ".")
    done = script(module)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not list(changed(text, path))
    file = tmp_path / Path(path).name
    file.write_text(text.replace(scripts.START, "if False:"))
    done = once(key(module, file.read_text()), lambda: forked([str(file)], tmp_path))
    assert done.returncode == 0, done.stderr


DEFINE_EACH = """import os, runpy, sys, traceback
failed = 0
for file in sys.argv[1:]:
    if child := os.fork():
        failed |= os.waitpid(child, 0)[1]
        continue
    try:
        runpy.run_path(file)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
sys.exit(bool(failed))
"""


def test_merged_scripts_that_only_define_say_what_their_files_do_and_can_be_defined(tmp_path: Path, forked: Forked):
    """Each in a process that has torch already: a part of a page is imported by others, and its tests import it."""
    different = {path: found for path in PARTS if (found := list(changed(scripts.script(path), path)))}
    assert not different
    files = [tmp_path / path.replace("/", ".") for path in PARTS]
    for path, file in zip(PARTS, files, strict=True):
        file.write_text(scripts.script(path))
    driver = tmp_path / "each.py"
    driver.write_text(DEFINE_EACH)
    done = forked([str(driver), *map(str, files)], tmp_path)
    assert done.returncode == 0 and not done.stdout, done.stderr + done.stdout


def changed(text: str, path: str, root: Path = ROOT) -> Iterator[str]:
    """What a merged script says otherwise than the files that it is merged from."""
    texts = {other: markers.without((root / other).read_text()) for other in scripts.reached(path, root)}
    files = {
        other: Said.of(scripts.COMMAND.sub(r"python \1.py", text), scripts.package_of(other))
        for other, text in texts.items()
    }
    script = Said.of(text)
    own = [ast.dump(node) for node in files[path].statements]
    if [ast.dump(node) for node in script.statements[-len(own) :]] != own:
        yield f"it does not end with the statements of {path}"
    for statement in script.statements:
        homes = [said for said in files.values() if ast.dump(statement) in said.dumped]
        if not homes:
            yield f"no file has {ast.unparse(statement)[:80]!r}"
        names = taken(ast.unparse(statement))
        if homes and not any(all(script.meant(name) == said.meant(name, files) for name in names) for said in homes):
            yield f"names mean something else in {ast.unparse(statement)[:80]!r}"


@dataclass
class Said:
    """What stands at the top level of a file: its statements but for imports and the docstring, and what names mean."""

    statements: list[ast.stmt]
    imports: dict[str, tuple[str, str]]

    @classmethod
    def of(cls, text: str, package: str = "") -> "Said":
        first, *others = ast.parse(text).body
        nodes = others if isinstance(first, ast.Expr) else [first, *others]
        imports: dict[str, tuple[str, str]] = {}
        for node in nodes:
            for each in of_statement(node, package):
                whole = each.bound == each.module.partition(".")[0] and not each.name
                imports[each.bound] = (each.bound if whole else each.module, each.name)
        return cls([node for node in nodes if not isinstance(node, ast.Import | ast.ImportFrom)], imports)

    @functools.cached_property
    def dumped(self) -> set[str]:
        return set(map(ast.dump, self.statements))

    def meant(self, name: str, files: Mapping[str, "Said"] = MappingProxyType({})) -> object:
        """What gives a name its meaning: statements, also those of another file of ours, or an import."""
        module, wanted = self.imports.get(name, ("", ""))
        if (other := files.get(f"{module.replace('.', '/')}.py")) is not None:
            return other.meant(wanted, files)
        bound = [ast.dump(node) for node in self.statements if name in scripts.bound(node)]
        return [*bound, *([(module, wanted)] if name in self.imports else [])]


@functools.cache  # most scripts carry the same files
def as_in_the_repository(name: str, text: str) -> bool:
    return markers.without((ROOT / name).read_text()) == markers.without(text)


@functools.cache
def imports_of_ours(name: str, text: str) -> list[tuple[str, set[str]]]:
    """What a file imports of ours, each with the files one of which it needs."""
    found = []
    for each in imported(ast.parse(text), scripts.package_of(name)):
        bases = [module.replace(".", "/") for module in (each.module, each.path)]
        if each.module.startswith(scripts.OURS):
            found.append((each.path, {f"{base}{end}" for base in bases for end in (".py", "/__init__.py")}))
    return found


def test_a_script_carries_whatever_its_files_import(tmp_path: Path):
    """It runs the files as they are: what could be wrong with it is that one is missing."""
    assert CARRIED
    wrong = []
    for path in CARRIED:
        (tmp_path / "script.py").write_text(scripts.script(path))
        files = runpy.run_path(str(tmp_path / "script.py"))["FILES"]
        for name, text in files.items():
            if not as_in_the_repository(name, text):
                wrong.append(f"{path}: {name} is not as it is in the repository")
            for module, needed in imports_of_ours(name, text):
                if not needed & files.keys():
                    wrong.append(f"{path}: {name} imports {module}, which is not there")
    assert not wrong, "\n".join(wrong)


# ---- how scripts are made -------------------------------------------------------------------------------------------

TIMER = '''"""A timer."""

import math
import time

from fractions import Fraction

ROUNDS = 3  # as many as it takes
UNIT = 1e6


# The best of some.
# --8<-- [start:best]
def best(call):
    return min(once(call) for _ in range(ROUNDS))


# --8<-- [end:best]


def once(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def unused(x: Fraction):
    return math.sqrt(x)
'''
OP = '''"""An op.

Run `python -m snippets.op`.
"""

from functools import partial

from snippets.timer import best


def main():
    print(best(partial(abs, -1)) >= 0)


if __name__ == "__main__":
    main()
'''


def house(folder: Path, **files: str) -> Path:
    """A folder with snippets of these texts."""
    (folder / "snippets").mkdir(parents=True)
    for name, text in files.items():
        (folder / "snippets" / f"{name}.py").write_text(text)
    return folder


def printed(text: str, folder: Path) -> str:
    """What a script prints that is run in a folder of its own."""
    (folder / "alone").mkdir()
    (folder / "alone" / "script.py").write_text(text)
    command = [sys.executable, "-I", "script.py"]
    return subprocess.run(command, cwd=folder / "alone", capture_output=True, text=True, check=True).stdout


def test_a_script_has_what_is_used_of_other_files_and_no_more(tmp_path: Path):
    text = scripts.script("snippets/op.py", house(tmp_path, op=OP, timer=TIMER), "https://site/")
    assert text.startswith(
        '"""An op.\n\nRun `python op.py`.\n"""\n\n# https://site/op.py, MIT licence. With what it uses of timer.py.'
    )
    assert "import time\nfrom functools import partial\n" in text
    assert "# The best of some.\ndef best" in text and "ROUNDS = 3" in text and "def once" in text
    assert not {"UNIT", "unused", "math", "fractions", "8<"} & set(re.findall(r"[\w<]+", text))
    assert printed(text, tmp_path) == "True\n"


def test_a_page_offers_the_program_for_its_parts_and_a_part_that_no_program_uses(tmp_path: Path):
    root = house(
        tmp_path,
        op="from snippets.op_table import table\n\ntable()\n",
        op_table="def table():\n    return 1\n",
        op_alone="ONE = 1\n",
    )
    parts = [f"snippets/{name}.py" for name in ("op_table", "op_alone", "op")]
    assert scripts.offered(parts, root) == ["snippets/op.py", "snippets/op_alone.py"]


GROWING = {  # a file of which more is used later than at first, and what the program prints
    "first for `one`, which needs nothing; then for `two`, which needs another file": (
        {
            "op": "from snippets.first import three\nfrom snippets.shared import two\n\nprint(three(), two())\n",
            "first": "from snippets.shared import one\n\n\ndef three():\n    return one\n",
            "shared": "from snippets.zero import ZERO\n\none = 1\n\n\ndef two(x=ZERO):\n    return x\n",
            "zero": "ZERO = 0\n",
        },
        "1 0\n",
    ),
    "`middle` needs `lower` only for what `op` takes of it, after `higher` took less": (
        {
            "lower": "Rates = dict\n",
            "middle": "from snippets.lower import Rates\n\nWORK = 1\n\n\ndef line(rates: Rates):\n    return 2\n",
            "higher": "from snippets.middle import WORK\n\nMORE = WORK + 1\n",
            "op": "from snippets.higher import MORE\nfrom snippets.middle import line\n\nprint(line({}) + MORE)\n",
        },
        "4\n",
    ),
}


@pytest.mark.parametrize("what", GROWING)
def test_a_file_whose_use_grows_stands_behind_all_that_it_then_uses(what: str, tmp_path: Path):
    texts, said = GROWING[what]
    root = house(tmp_path, **{name: f'"""A file."""\n\n{text}' for name, text in texts.items()})
    text = scripts.script("snippets/op.py", root)
    assert "\nFILES = {" not in text and printed(text, tmp_path) == said


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("min(once", "max(once", "no file has 'def best"),
        ("def once", "def since", "names mean something else in 'def best"),
        ("import time\n", "import calendar as time\n", "names mean something else in 'def once"),
        ("abs, -1", "abs, -2", "it does not end with"),
    ],
)
def test_a_script_that_says_something_else_is_noticed(old: str, new: str, said: str, tmp_path: Path):
    root = house(tmp_path, op=OP, timer=TIMER)
    text = scripts.script("snippets/op.py", root, "https://site/")
    assert not list(changed(text, "snippets/op.py", root)) and old in text
    assert said in "\n".join(changed(text.replace(old, new), "snippets/op.py", root))


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


IMPORT, PARTIAL = "from snippets.timer import best\n", "from functools import partial"
TWICE = "from operator import call as time\n"
ENTANGLED = {  # what it would lose, changes of the op, changes of the timer, and what the error says
    "a name of both": ([("def main", "ROUNDS = 5\n\n\ndef main")], [], "ROUNDS"),
    "a module by its name": ([(IMPORT, "from snippets import timer\n"), ("best(", "timer.best(")], [], "is a module"),
    "another name": ([("import best", "import best as fastest"), ("best(", "fastest(")], [], "renames what it imports"),
    "an import in a function": ([(IMPORT, ""), ("    print", f"    {IMPORT}\n    print")], [], "within a function"),
    "its own name": ([("print(", "print(__spec__.name == 'snippets.op' and ")], [], "asks where it lies, or starts"),
    "its place": ([("print(", "print(__file__.endswith('snippets/op.py') and ")], [], "asks where it lies, or starts"),
    "the timer's place": (
        [], [("    call()", "    call() if __file__.endswith('timer.py') else time.sleep(-1)")], "once asks where it",
    ),
    "an import that means two things": ([(PARTIAL, TWICE + PARTIAL)], [], "time is one thing"),
    "a loop": ([], [("ROUNDS = 3", "for ROUNDS in (1, 3): print(ROUNDS)")], "more than to define"),
    # a registration, such as `op.register_autograd(...)` or `@op.register_fake`, defines nothing that is used
    "a call": ([], [("def unused", "print(best.__name__)\n\n\ndef unused")], "acts on what is used"),
    "a call in a loop": (
        [], [("def unused", "for i in range(2):\n    print(best.__name__)\n\n\ndef unused")], "acts on what is used",
    ),
    "a decorator": (
        [], [("def unused", "@partial(print, best.__name__)\ndef noted(): pass\n\n\ndef unused"),
             ("import time\n", f"import time\n{PARTIAL}\n")], "acts on what is used",
    ),
}  # fmt: skip
PRINTED = {"a loop": "1\n3\n", "a call": "best\n", "a call in a loop": "best\nbest\n", "a decorator": "best"}


@pytest.mark.parametrize("what", ENTANGLED)
def test_what_cannot_be_one_file_is_carried_and_runs(what: str, tmp_path: Path):
    op, timer, said = ENTANGLED[what]
    root = house(tmp_path, op=replaced(OP, *op), timer=replaced(TIMER, *timer))
    with pytest.raises(scripts.Entangled, match=said):
        scripts.merged("snippets/op.py", root)
    shown = printed(scripts.script("snippets/op.py", root), tmp_path)
    assert shown.startswith(PRINTED.get(what, "")) and shown.endswith("True\n")


def test_a_panel_offers_a_snippets_script(tmp_path: Path):
    root = house(tmp_path, op=OP, timer=TIMER)
    panel = kernel_files.snippet("snippets/op.py", Place("a.md", "a/", "https://site/"), root)
    assert 'data-copy-url="../op.py"' in panel and 'data-copy-text="curl -O https://site/op.py"' in panel
    shown = re.search(r"    ```python\n(.*?)    ```", panel, re.S)
    assert shown and textwrap.dedent(shown[1]) == scripts.script("snippets/op.py", root, "https://site/")
    with pytest.raises(PublishError, match=r"snippets/op\.py"):
        kernel_files.snippet("snippets/of.py", Place("a.md", "a/"), root)


# ---- what a page says below its code --------------------------------------------------------------------------------

PAGE = """---
title: An op
---

```python
--8<-- "snippets/op.py:main"
```

- In a list:

    ```python
    --8<-- "snippets/op.py:again"
    ```
"""
OTHER = """---
title: The timer
---

## What it does { #does }

### How it `counts`

```python
--8<-- "snippets/timer.py:best"
```
"""


AGAIN = """# --8<-- [end:main]


# --8<-- [start:again]
def again(OTHER, x=math.pi):
    return main, OTHER, partial, SIZE, len(str(x))


# --8<-- [end:again]
if __name__"""


@pytest.fixture
def notes(tmp_path: Path) -> list[str]:
    """What stands below the blocks of a page, as lines."""
    marked = OP.replace("from functools", "import math\nimport numpy as np\nfrom functools").replace(
        "abs, -1", "np.full, SIZE"
    )
    marked = marked.replace("def main", "OTHER = SIZE = 1\n\n\n# --8<-- [start:main]\ndef main").replace(
        "if __name__", AGAIN
    )
    root = house(tmp_path, op=marked, timer=TIMER)
    kept.forget()
    text = elsewhere.noted(PAGE, Place("op.md", "op/"), {"op.md": PAGE, "a/timer.md": OTHER}, root)
    return [line for line in text.splitlines() if "rp-from" in line]


def test_a_section_says_where_its_names_are_from(notes: list[str]):
    assert re.sub(r"<[^>]*>", "", notes[0]) == (
        "Part of op.py. Also there: SIZE. Imported: np is numpy; best from The timer; partial from functools."
    )
    assert 'href="../a/timer/#how-it-counts">The timer' in notes[0]
    assert 'href="../op.py" download' in notes[0] and all('data-script="../op.py"' in note for note in notes)


def test_each_block_can_be_pasted_alone_and_names_all_that_it_imports(notes: list[str]):
    """No argument is taken for the name of another file, nor are Python's own names and a module's said."""
    assert [re.sub(r"<[^>]*>", "", note).strip() for note in notes[1:]] == [
        "Part of op.py. Also there: SIZE. Imported: partial from functools."
    ]


def test_a_name_that_is_imported_as_another_is_found_under_its_own(tmp_path: Path):
    renamed = OP.replace("import best", "import best as fastest").replace("best(", "fastest(")
    marked = renamed.replace("def main", "# --8<-- [start:main]\ndef main")
    marked = marked.replace("if __name__", "# --8<-- [end:main]\nif __name__")
    root = house(tmp_path, op=marked, timer=TIMER)
    kept.forget()
    page = '---\ntitle: Op\n---\n\n```python\n--8<-- "snippets/op.py:main"\n```\n'
    text = elsewhere.noted(page, Place("op.md", "op/"), {"op.md": page, "a/timer.md": OTHER}, root)
    assert '<code>fastest</code> from <a href="../a/timer/#how-it-counts">The timer</a>' in text


def test_pages_say_where_names_of_other_pages_are_from():
    kept.forget()
    texts = pages.texts()
    text = elsewhere.noted(texts["examples/one-block.md"], Place("examples/one-block.md", "examples/one-block/"), texts)
    assert '<code>captured</code> from <a href="../../validation/timing/#the-timer">Timing an operation</a>' in text
    text = elsewhere.noted(texts["patterns/attention.md"], Place("patterns/attention.md", "patterns/attention/"), texts)
    assert "<code>merge</code> and <code>split</code>" in text and "<code>torch.nn.functional</code>" in text


def test_a_beginners_page_does_not_walk_inductors_objects():
    kept.forget()
    for page, text in pages.texts().items():
        for block in blocks_of(text, page) if "\nlevel: beginner\n" in text else ():
            for path, section in block.includes if block.embedded and block.language == "python" else ():
                shown, origins = elsewhere.used(ROOT / path, section), elsewhere.where(path, ROOT)
                inside = [name for name in shown if name in origins and "_inductor.graph" in origins[name].module]
                assert not inside, f"{block}: {path}:{section} shows {inside}"


# ---- as notebooks ---------------------------------------------------------------------------------------------------


def in_cells(notebook: nbformat.NotebookNode, path: str, script: str) -> bool:
    """Whether a notebook has a script's code: cell by cell, or as a file that it writes, and then runs or imports."""
    first, *others = (cell.source for cell in notebook.cells if cell.cell_type == "code")
    if not first.startswith("%%writefile "):
        return [ast.dump(node) for node in ast.parse("\n".join([first, *others])).body] == body(script)
    start = f"import {Path(path).stem}" if path.startswith("kernels/") else f"%run {Path(path).name}"
    return first == f"%%writefile {Path(path).name}\n{script.rstrip()}" and others == [start]


def test_each_script_is_a_notebook_with_the_same_code():
    """And with the same bytes in each build."""
    texts = {path: scripts.notebook(path, scripts.script(path)) for path in EMBEDDED}
    assert all(texts[path] == scripts.notebook(path, scripts.script(path)) for path in EMBEDDED[::20])
    notebooks = {path: nbformat.reads(text, as_version=4) for path, text in texts.items()}
    invalid = [path for path, notebook in notebooks.items() if not nbformat.validator.isvalid(notebook)]
    assert not invalid
    different = [path for path, notebook in notebooks.items() if not in_cells(notebook, path, scripts.script(path))]
    assert not different


def test_a_notebook_of_a_script_and_one_of_a_program_run(tmp_path: Path, once: Forked):
    """In Jupyter's own kernel, in an empty folder. What a notebook printed is remembered by its cells."""
    for path, argument, expected in (
        ("snippets/patterns/attention.py", "", "sdpa-mask"),
        ("snippets/validation/gate.py", " --help", "usage: gate.py"),
    ):
        notebook = nbformat.reads(scripts.notebook(path, scripts.script(path)), as_version=4)
        notebook.cells[-1].source += argument
        known = remembered.digest(ROOT, [Path(__file__)], *(cell.source for cell in notebook.cells))
        key = ROOT / remembered.FOLDER / f"notebook {Path(path).stem}-{known}"
        assert expected in once(key, lambda notebook=notebook: executed(notebook, tmp_path)).stdout


def executed(notebook: nbformat.NotebookNode, folder: Path) -> subprocess.CompletedProcess[str]:
    """What a notebook printed in Jupyter's own kernel.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": folder}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return subprocess.CompletedProcess([], 0, "".join(output.get("text", "") for output in outputs), "")


@pytest.mark.parametrize(("name", "language"), [("layer_norm_gelu_cuda", "text"), ("softmax", "python")])
def test_a_panel_of_many_lines_is_plain(name: str, language: str) -> None:
    panel = kernel_files.panel(name, Place("a.md", "a/"))
    assert set(re.findall(r"^ {4}```(\w+)$", panel, re.MULTILINE)) == {language}
