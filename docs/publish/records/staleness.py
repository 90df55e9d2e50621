"""Does a recorded number still belong to the code? What it can reach is found again (tests/benchmarks/functions.py)."""

from functools import cache
from pathlib import Path
from types import ModuleType

from docs.publish.kept import Kept, in_a_build, key
from docs.publish.records import earlier
from docs.publish.records.earlier import plan_of
from docs.publish.records.schema import Sources
from tests.benchmarks import functions, imports, source
from tests.benchmarks.functions import Code
from tests.benchmarks.reviewed import VERSION
from tests.benchmarks.source import ROOT

CODE, METHOD = "code", "timing method"  # what may have changed, as pages say it
digests = Kept("digests")


def changed(sources: Sources, root: Path = ROOT) -> str:
    """What has changed since a row or a sweep was measured: what it can reach, or the method alone; else nothing."""
    if sources.code != _code(sources.files[-1], plan_of(sources.files), root):
        return CODE
    return METHOD if sources.version != VERSION else ""


@in_a_build
def script_is_stale(script: str, sources: str, root: Path = ROOT) -> bool:
    """Whether a script, by its path, or something that it reaches differs from what a GPU ran."""
    now, all_texts = _now(root)
    try:
        return digests.get(key(all_texts, script), lambda: now.printed(script).hash) != earlier.code(sources)
    except (KeyError, SyntaxError):
        return True


@in_a_build
def _code(case_file: str, plan: str, root: Path) -> str | None:
    """The hash of what is reached now; None where something is gone or broken."""
    now, all_texts = _now(root)
    try:
        return digests.get(key(all_texts, case_file, plan), lambda: now.measured(case_file, plan).hash)
    except (KeyError, SyntaxError):
        return None


def code_as_it_is(root: Path) -> str:
    """A name for what the code is now."""
    return _now(root)[1]


@in_a_build
def _now(root: Path) -> tuple[Code, str]:
    """The code as it is, and a name for it and for the code that finds what is reached."""
    now = Code.of(root)
    return now, key(sorted(now.texts.items()), *(_text(module) for module in (functions, imports, source)))


@cache
def _text(module: ModuleType) -> str:
    """The code that makes a hash."""
    return Path(str(module.__file__)).read_text(encoding="utf-8")
