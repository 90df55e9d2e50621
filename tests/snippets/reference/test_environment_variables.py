"""Each name stands on the page if a page uses it, and a variable sets its option unless the code wins."""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.publish.markdown.pages import PAGES
from snippets.reference import environment_variables as snippet
from snippets.reference.environment_variables_settings import MODULES, OPTIONS, SETTINGS, Setting, import_options
from tests.benchmarks import captures
from tests.benchmarks.source import ROOT
from tests.snippets.reference.test_environment_variables_settings import OF_RANKS

READ = "docs/pages"  # through docs.publish

PAGE = PAGES / "reference" / "environment-variables.md"
TEXT = PAGE.read_text(encoding="utf-8")
ENTRIES = [setting for group in SETTINGS.values() for setting in group]
NAME = re.compile(r"\b(?:INDUCTOR|TORCH(?:DYNAMO|INDUCTOR)?|TRITON|MLIR|CUDA|CUBLAS|PYTORCH)_[A-Z][A-Z0-9_]+\b")
NO_VARIABLES = {"TORCHINDUCTOR_USER", "TORCH_LIBRARY"}  # a part of a path, and a macro of C++
NO_VARIABLES |= {"TORCH_USE_CUDA_DSA", "TORCH_CUDA_ARCH_LIST"}  # for who builds PyTorch, or an extension of it
NO_OPTIONS = {"dynamic_shapes"}  # an argument of torch.export has that name, too
NO_OPTIONS |= {"optimize_ddp"}  # of several ranks, as the variables below: reference/communication has them

import_options()


def name_of(path: str) -> str:
    """An option as it is given to torch.compile: "triton.cudagraphs"."""
    return next(path.removeprefix(f"{module}.") for module in MODULES if path.startswith(f"{module}."))


def own(setting: Setting) -> str:
    """What a setting is called on the page."""
    return setting.variable.partition("=")[0] or name_of(setting.where)


# ---- the page and the others ----------------------------------------------------------------------------------------


def others(suffixes: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    """Pages and snippets, without this page and its snippets."""
    for folder in (PAGES, ROOT / "snippets"):
        for path in sorted(folder.rglob("*")):
            ours = path.stem.replace("_", "-").startswith(PAGE.stem) or path.name.startswith("questions")
            if path.suffix in suffixes and not ours:
                yield path, path.read_text(encoding="utf-8")


PLAIN = {"freezing"}  # an option that is one word, as few are; words that are many things are not looked for
KNOWN = PLAIN | {name for module in MODULES for name in sys.modules[module]._config if "_" in name or "." in name}
KNOWN |= {name_of(path) for path in OPTIONS}  # those too that this version lacks


def options_of_code(code: str) -> Iterator[str]:
    """What Python code sets or reads of the compiler's options."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Call(func=ast.Attribute(attr="patch"), keywords=keywords):
                yield from (keyword.arg for keyword in keywords if keyword.arg)
            case ast.Dict(keys=keys):
                yield from (key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
            case ast.Attribute(attr=name) if "config" in ast.unparse(node.value):
                yield name


def options_of_page(text: str) -> Iterator[str]:
    """What a page names as code."""
    for code in re.findall(r"`([^`\n]+)`", text):
        for name in re.findall(r"[a-z_]+(?:\.[a-z_]+)*", code):
            yield name.rpartition("config.")[2]


@functools.cache
def used() -> set[str]:
    found: set[str] = set()
    for path, text in others((".md", ".py")):
        found |= set(NAME.findall(text))
        options = options_of_code(text) if path.suffix == ".py" else options_of_page(text)
        found |= set(options) & KNOWN
    return found - NO_VARIABLES - NO_OPTIONS - set(OF_RANKS)


def test_what_a_page_or_a_snippet_uses_stands_here():
    here = {own(setting) for setting in ENTRIES} | {name_of(path) for path in OPTIONS}
    assert not (missing := sorted(used() - here)), f"add to environment_variables_settings.py: {missing}"


def sections() -> dict[tuple[str, ...], str]:
    """The names of each entry on the page, and its text."""
    parts = re.split(r"^### (.+?) \{ #[\w-]+ \}\n", TEXT, flags=re.MULTILINE)[1:]
    return {
        tuple(re.findall(r"`([^`]+)`", head)): text.partition("\n## ")[0]
        for head, text in zip(parts[::2], parts[1::2], strict=True)
    }


def test_the_page_has_each_entry_once():
    names = [name for entry in sections() for name in entry]
    assert sorted(names) == sorted({own(setting) for setting in ENTRIES})


ALONE = {  # neither used by another page nor with a run of its own, and why it stands here
    "TORCH_COMPILE_DEBUG_DIR": "the run above is made with it",
    "TORCHDYNAMO_REPRO_LEVEL": "a part of the entry above",
    "PYTORCH_ALLOC_CONF": "acts on a GPU only",
    "PYTORCH_CUDA_ALLOC_CONF": "acts on a GPU only",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "acts on a GPU only",
    "CUDA_LAUNCH_BLOCKING": "acts on a GPU only",
    "TRITON_PRINT_AUTOTUNING": "acts on a GPU only",
}


@pytest.mark.parametrize("entry", sections(), ids="-".join)
def test_an_entry_is_used_elsewhere_or_shown_here(entry):
    paths = {name_of(setting.where) for setting in ENTRIES if own(setting) in entry and setting.where in OPTIONS}
    shown = "{{ output(" in sections()[entry]
    assert shown or (set(entry) | paths) & used() or set(entry) <= ALONE.keys()


@pytest.mark.parametrize("entry", sections(), ids="-".join)
def test_an_entry_says_since_when(entry):
    source = r"\[since \d\.\d+\]\(https://github\.com/pytorch/pytorch/blob/v\d"
    assert re.search(
        rf"{source}|since triton \d|older than (torch )?2\.0|tested on torch \d", sections()[entry].lower()
    )


# ---- what is printed ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def printed(script) -> dict[str, str]:
    done = script(snippet.__name__)
    assert not done.returncode, done.stderr
    return {section: text.strip() for section, text in captures.sections(done.stdout).items()}


def test_each_variable_changes_its_option(printed):
    lines = [line for group in SETTINGS for line in printed[group].splitlines() if " -> " in line]
    assert len(lines) == sum(bool(each.variable) and each.where in OPTIONS for each in ENTRIES)
    same = [line for line in lines if len({side.strip() for side in line.split(" -> ")}) == 1]
    assert not same


def test_a_forced_variable_wins_over_the_code_and_others_do_not(printed):
    said = [line.rpartition(": ")[2] for line in printed["precedence"].splitlines()]
    assert said == ["False", "False", "False"]
