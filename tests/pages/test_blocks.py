"""Runs the Python and shell typed into pages, through pytest-codeblocks.

pytest-codeblocks collects a fence only if its info string is exactly `python`, `sh` or `bash`, does not expand
includes, and runs code that is in no file (so `@triton.jit` fails). So it gets a page with plain info strings, where
what needs no run is text, and each block runs from a file.
"""

import ast
import contextlib
import hashlib
import io
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import markdown
import pytest
import torch
from pytest_codeblocks.main import CodeBlock, extract_from_buffer
from torch.utils.benchmark import Timer

from docs.publish.generated import census
from docs.publish.markdown import pages, scripts
from docs.publish.markdown.fences import Block, blocks_of
from docs.publish.place import cuda_files, kernel_files
from tests import remembered
from tests.benchmarks.imports import imported
from tests.benchmarks.source import ROOT
from tests.conftest import HERE

READ = "docs/pages", "snippets/**/*.py", "tests/benchmarks", "tests/forked.py"  # through docs.publish

SECONDS = 300  # for a shell block on a slow machine that is busy
SHELL = re.compile(r"[|&;<>$`=]\s*\S")  # what asks for more than to start programs one after another
Script = Callable[..., subprocess.CompletedProcess[str]]


def expand(code: str) -> str:
    """Code with its includes expanded, by the extension that expands them on the page."""
    settings = {"pymdownx.snippets": {"base_path": [str(ROOT)], "check_paths": True, "dedent_subsections": True}}
    extended = markdown.Markdown(extensions=["pymdownx.snippets"], extension_configs=settings)
    return "\n".join(extended.preprocessors["snippet"].run(code.splitlines())) + "\n"


def plain(text: str, page: str, run: list[Block]) -> str:
    """The page as pytest-codeblocks wants it: blocks to run plain and at the margin, the others as text."""
    wanted = {block.line for block in run}
    lines = text.splitlines()
    for block in blocks_of(text, page):
        indent = lines[block.line - 1].partition(block.fence)[0]
        lines[block.line - 1] = block.fence + (block.language if block.line in wanted else "text")
        for number in range(block.line, block.last):
            lines[number] = lines[number].removeprefix(indent)
    return "\n".join(lines) + "\n"


def collect() -> list:
    """The blocks that run, as test parameters named after page and line."""
    found = []
    run = census.by_kind()["run"]
    for page, text in pages.texts().items():
        blocks = extract_from_buffer(io.StringIO(plain(text, page, [block for block in run if block.page == page])))
        found += [pytest.param(block, id=f"{page}:{block.lineno}") for block in blocks if block.syntax != "text"]
    return found


BLOCKS = collect()


@pytest.fixture(scope="session")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that panels offer, once for all blocks of a process: imported again, a kernel would register twice."""
    folder = tmp_path_factory.mktemp("copies")
    for kernel in (*kernel_files().values(), *(path for both in cuda_files().values() for path in both)):
        shutil.copy(kernel, folder)
    for path in re.findall(r"snippet_file\(\s*[\"']([^\"']+)", "".join(pages.texts().values())):
        (folder / Path(path).name).write_text(scripts.script(path))
    return folder


@pytest.fixture(scope="module", autouse=True)
def copies(copied: Path) -> Iterator[Path]:
    """These files as a reader has them beside their code, imported by their own names. Timers are soon content."""
    usual = Timer.blocked_autorange
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(copied)
        patch.setattr(Timer, "blocked_autorange", lambda timer, min_run_time=0.2: usual(timer, None, 0.01))
        yield copied


def run_python(code: str, folder: Path) -> str:
    """Run code from a file, as a script; returns what it printed."""
    file = folder / "block.py"
    file.write_text(code)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(file), run_name="__main__")
    finally:
        torch._dynamo.reset()
    return printed.getvalue()


def run_shell(code: str, shell: str) -> str:
    """Run code from the root with this environment's programs first; returns what it printed.

    It may leave no file there: a reader's checkout stays as it was.
    """
    before = files_of_root()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    started = subprocess.Popen(
        [shell, "-eu", "-c", code],
        cwd=ROOT,
        env=os.environ | {"PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = started.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)  # what the shell started, too
        raise
    assert started.returncode == 0, f"exit status {started.returncode}\n{printed}"
    assert not files_of_root() - before
    return printed


def files_of_root() -> set[str]:
    return {path.name for path in ROOT.iterdir() if path.is_file()}


def scripts_of(code: str) -> list[list[str]]:
    """The words behind each `python -m` of a block that holds nothing else; none of a block that does."""
    lines = [shlex.split(line, comments=True) for line in code.replace("\\\n", " ").splitlines()]
    lines = [words for words in lines if words]
    plain = not SHELL.search(re.sub(r'"[^"$`]*"', "", code)) and all(words[:2] == ["python", "-m"] for words in lines)
    return [words[2:] for words in lines] if plain else []


def run_scripts(commands: list[list[str]], script: Script) -> str:
    """What the scripts printed, each in the run that all tests share."""
    printed = ""
    for module, *arguments in commands:
        done = script(module, HERE, *arguments)
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
        printed += done.stdout
    return printed


def run(block: CodeBlock, folder: Path, script: Script) -> None:
    """Run a block, and compare its output where the page states it."""
    assert not block.marks and not block.importorskip, "no mark on a block: list it in unrunnable.toml, with its reason"
    code = expand(block.code)
    if block.syntax == "python":
        printed = run_python(code, folder)
    elif commands := scripts_of(code):
        printed = run_scripts(commands, script)
    else:
        printed = run_shell(code, block.syntax)
    if block.expected_output is not None:
        assert printed == block.expected_output


@pytest.mark.parametrize("block", BLOCKS)
def test_block(block: CodeBlock, tmp_path: Path, script: Script, once: Script, copies: Path):
    """Python that ended well is remembered by itself, and not with all pages; so is each script that a shell starts."""

    def ended() -> subprocess.CompletedProcess[str]:
        run(block, tmp_path, script)
        return subprocess.CompletedProcess([], 0, "", "")

    if block.syntax == "python":
        once(remembered_by(expand(block.code), block.expected_output, copies), ended)
    else:
        run(block, tmp_path, script)


def remembered_by(code: str, expected: str | None, copies: Path) -> Path:
    """By what Python is remembered: its code, what it is to print, and the copies that it imports."""
    names = {each.module for each in imported(ast.parse(code))}
    used = sorted(file for file in copies.iterdir() if {file.stem, f"{file.stem}_cuda"} & names)
    texts = [file.read_text(encoding="utf-8") for file in used]
    known = remembered.digest(ROOT, [Path(__file__)], code, str(expected), *texts)
    name = hashlib.sha256(code.encode()).hexdigest()[:16]  # one for each block, since few are kept of a name
    return ROOT / remembered.FOLDER / f"block {name}-{known}"


def test_python_is_remembered_by_its_code_its_output_and_its_copies(tmp_path: Path):
    (tmp_path / "timer.py").write_text("1")
    (tmp_path / "other.py").write_text("1")
    block = "import timer", None
    keys = [remembered_by(*each, tmp_path) for each in (block, ("import timer  # 2", None), ("import timer", "2"))]
    assert len(set(keys)) == 3
    (tmp_path / "other.py").write_text("2")
    assert remembered_by(*block, tmp_path) == keys[0]
    (tmp_path / "timer.py").write_text("2")
    assert remembered_by(*block, tmp_path) != keys[0]


def test_no_block_is_missed():
    """pytest-codeblocks sees what the census says is run."""
    seen = [param.values[0].code for param in BLOCKS]
    missed = [str(block) for block in census.by_kind()["run"] if not any(block.body in code for code in seen)]
    assert not missed


def test_typed_python_needs_torch_triton_and_what_its_page_offers():
    """A reader pastes it into an empty folder; here a block could import all of the repository."""
    faults = []
    for block in census.by_kind()["run"]:
        if block.language == "python":
            text = pages.texts()[block.page]
            copied = {Path(path).stem for path in re.findall(r"(?:snippet|kernel)_file\(\s*[\"']([^\"']+)", text)}
            known = {"torch", "triton"} | sys.stdlib_module_names | copied
            names = {each.module.partition(".")[0] for each in imported(ast.parse(expand(block.body)))}
            faults += [f"{block}: {name}" for name in sorted(names - known)]
    assert not faults, "expected torch, triton, or a file that the page offers, got\n" + "\n".join(faults)


def blocks_in(text: str) -> list[CodeBlock]:
    return extract_from_buffer(io.StringIO(plain(text, "page.md", blocks_of(text, "page.md"))))


@pytest.mark.parametrize("info", ['python title="broken.py"', 'python hl_lines="1"', "{.python .annotate}", "py"])
def test_broken_python_fails_whatever_its_options(info: str, tmp_path: Path, script: Script):
    (block,) = blocks_in(f"```{info}\nx = = 1\n```\n")
    with pytest.raises(SyntaxError):
        run(block, tmp_path, script)


def test_code_imports_the_copy_of_a_kernel(tmp_path: Path, script: Script, copies: Path):
    code = f"import softmax\nassert softmax.__file__ == {str(copies / 'softmax.py')!r}"
    (block,) = blocks_in(f"```python\n{code}\n```\n")
    run(block, tmp_path, script)


def test_broken_shell_fails(tmp_path: Path, script: Script):
    (block,) = blocks_in('```sh title="run"\nfalse\ntrue\n```\n')
    with pytest.raises(AssertionError, match="exit status 1"):
        run(block, tmp_path, script)


def test_a_block_that_leaves_a_file_fails(tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    block = CodeBlock("echo x > report.html", 1, "sh")
    with pytest.raises(AssertionError, match=r"report\.html"):
        run(block, tmp_path, script)


def test_a_script_that_fails_fails_its_block(tmp_path: Path):
    (block,) = blocks_in("```sh\npython -m snippets.nothing\n```\n")
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="out of order")
    with pytest.raises(AssertionError, match="out of order"):
        run(block, tmp_path, lambda *_: failed)


@pytest.mark.parametrize(
    ("code", "commands"),
    [
        ("# first\npython -m snippets.a\npython -m snippets.b --n 3\n", [["snippets.a"], ["snippets.b", "--n", "3"]]),
        ('python -m a \\\n    --signature "*bf16:16, i32=1"\n', [["a", "--signature", "*bf16:16, i32=1"]]),
        ("TORCH_LOGS=graph_breaks python -m snippets.a\n", []),
        ("python -m snippets.a > log\n", []),
        ("python -m snippets.a && false\n", []),
        ("python -m snippets.a\nfalse\n", []),
        ('python -m snippets.a "$HOME"\n', []),
    ],
)
def test_a_block_that_only_starts_scripts_is_known(code: str, commands: list[list[str]]):
    assert scripts_of(code) == commands


def test_a_triton_kernel_on_a_page_runs(tmp_path: Path, script: Script):
    (block,) = blocks_in("""```python title="a kernel"
import torch
import triton
import triton.language as tl

@triton.jit
def fill(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 1.0)

x = torch.zeros(8, device="cuda" if torch.cuda.is_available() else "cpu")
fill[(1,)](x, 8)
assert x.sum() == 8
```
""")
    run(block, tmp_path, script)


def test_includes_in_typed_code_are_expanded(tmp_path: Path, script: Script):
    (block,) = blocks_in('```python\n--8<-- "tests/benchmarks/source.py"\nassert digest_texts\n```\n')
    run(block, tmp_path, script)


def test_a_mark_cannot_skip_a_block(tmp_path: Path, script: Script):
    (block,) = blocks_in("<!--pytest.mark.skip-->\n\n```python\nx = 1\n```\n")
    with pytest.raises(AssertionError, match=r"unrunnable\.toml"):
        run(block, tmp_path, script)
