"""What pages show of scripts' output is what the scripts print today; and `nox -s record`, which makes it again."""

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from docs.publish.errors import PublishError
from docs.publish.markdown import pages
from docs.publish.records.asked import Asked, of_page
from docs.publish.records.captures import Captures
from docs.publish.records.store import Store
from docs.publish.site import record
from tests.benchmarks import captures as printing
from tests.benchmarks import machine
from tests.benchmarks.source import ROOT
from tests.forked import Server
from tests.pages import tiny

READ = "docs/pages", "snippets/**/*.py", "tests/benchmarks", "tests/snippets"  # through docs.publish

INSTALLED = machine.software()
SYSTEM = "Linux x86_64"  # on which all is captured: another generates other code
CPU = printing.scripts("cpu")
PAGE = """---
title: A page
folklore:
  - id: front-matter
    comparisons:
      - {where: here, less: {output: front, of: a/other, line: a}, than: {output: matter, line: b}}
---
{{ output("first", lines="1-2") }} {{ captured("second", "row", which=2, on="gpu") }} {{ output() }}
{{ holds("a more than b", a=captured("inside", "row", of="a/other"), b=gpu("ours", "small")) }}
{% for name in ["one", "two"] %}{{ captured("third", name) }}{% endfor %}
`{{ output("in code") }}`

```text
{{ output("in a block") }}
```
"""


def test_the_sections_that_a_page_shows_are_read_from_its_macros():
    own = {("first", ""), ("second", "gpu"), ("", ""), ("third", ""), ("matter", "")}
    found = of_page("a/b-c.md", PAGE)
    assert {(one.section, one.on) for one in found if one.script == "a/b_c"} == own
    assert {one.section for one in found if one.script == "a/other"} == {"front", "inside"}
    assert len(found) == len(own) + 2


@pytest.mark.parametrize("section", ['"a" ~ "b"', "a"])
def test_a_section_that_cannot_be_read_is_refused(section: str):
    with pytest.raises(PublishError, match=r"a\.md: expected section of output\(\.\.\.\) as a string"):
        of_page("a.md", f"{{{{ output({section}) }}}}")


def test_what_is_stored_of_a_cpu_is_what_pages_show():
    """And all that pages show is stored."""
    known = Captures.load()
    every = [one for page, text in pages.texts().items() for one in of_page(page, text)]
    shown = {(one.script, one.section) for one in every if known.find(one.script, one.section, one.on).device == "cpu"}
    scripts = printing.scripts("cpu")
    assert shown == {(script, section) for script in scripts for section in printing.contents(script, "cpu")}


def test_a_line_that_a_gpus_output_quotes_is_where_the_output_says():
    """Lines that move make nothing stale, and no GPU is asked again."""
    quotes = re.compile(r"^ *(snippets/[\w/]+\.py):(\d+) (\S.*)$", re.MULTILINE)
    outputs = [text for script in printing.scripts("cuda") for text in printing.contents(script, "cuda").values()]
    found = {quote for text in outputs for quote in quotes.findall(text)}
    assert found

    def there(file: str, line: str, quoted: str) -> bool:
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        return int(line) <= len(lines) and lines[int(line) - 1].strip().startswith(quoted)

    assert not [quote for quote in sorted(found) if not there(*quote)]


def test_no_page_says_a_device_without_need():
    known = Captures.load()

    def devices(one: Asked) -> set[str]:
        files = known.files.items()
        return {device for (script, device), file in files if script == one.script and one.section in file.contents}

    every = [one for page, text in pages.texts().items() for one in of_page(page, text)]
    assert not [one for one in every if one.on and len(devices(one)) < 2]


# ---- what scripts print today --------------------------------------------------------------------------------------


def runs(script: str, device: str) -> dict[str, dict]:
    """The run behind each stored section."""
    stored = printing.stored(script, device)
    return {section["section"]: stored["runs"][section["run"]] for section in stored["sections"]}


def test_each_section_was_printed_with_the_pinned_versions():
    """What another release printed is not run again, and would be on the pages unseen. A GPU's number says its own."""
    pins = printing.pinned()
    assert pins.keys() == {"torch", "triton"}
    found = {
        f"{script} {section!r}": (printing.versions(run["software"]), run["software"]["os"])
        for script in CPU
        for section, run in runs(script, "cpu").items()
    }
    others = {name: what for name, what in found.items() if what != (pins, SYSTEM)}
    assert not others, f"`nox -s record` makes these with {pins} on {SYSTEM}: {others}"


def test_no_section_may_differ_in_everything():
    assert not [name for name, words in words_to_compare().items() if not any(map(str.isalpha, words))]


def words_to_compare() -> dict[str, str]:
    found = {}
    for script in CPU:
        more = printing.varies(script)
        for section, content in printing.contents(script, "cpu").items():
            found[f"{script} {section!r}"] = printing.comparable(content, more.get(section, ""))
    return found


def test_what_varies_is_said_of_sections_that_are_stored():
    said = {(script, section) for script in CPU for section in printing.varies(script)}
    assert said and said <= {(script, section) for script in CPU for section in printing.contents(script, "cpu")}


@pytest.mark.parametrize("name", CPU)
def test_a_script_still_prints_what_the_pages_show(name, script):
    if reason := elsewhere():
        pytest.skip(reason)
    now, more = printing.printed(name, "cpu", script), printing.varies(name)
    before = printing.contents(name, "cpu")
    now = printing.chosen(name, now, before)
    assert list(now) == list(before), "in the order of printing"
    for section, content in before.items():
        rest = more.get(section, "")
        assert printing.comparable(now[section], rest) == printing.comparable(content, rest), section


def elsewhere() -> str:
    """Why this machine cannot be expected to print what is stored. With the pinned versions all is compared."""
    here, pins = printing.versions(INSTALLED), printing.pinned()
    if here != pins:
        return f"expected the pinned {pins}, got {here}"
    return "" if INSTALLED["os"] == SYSTEM else f"captured on {SYSTEM}, and this is {INSTALLED['os']}"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", printing.scripts("cuda"))
def test_on_a_gpu_a_script_still_prints_the_sections(name, script):
    """What is in them was measured there and then; that their code has changed, the pages say."""
    printing.chosen(name, printing.printed(name, "cuda", script), printing.contents(name, "cuda"))


ELSEWHERE = {
    "ATEN_CPU_CAPABILITY": "avx2", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "3",
    "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "0", "TORCHINDUCTOR_CPP_FORCE_INLINE_KERNEL": "1",
    "TORCHINDUCTOR_VEC_ISA_OK": "1", "TORCH_LOGS": "output_code,guards",
    "TRITON_PRINT_AUTOTUNING": "1", "TZ": "Asia/Kolkata", "LC_ALL": "C", "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0", "PYTHONHASHSEED": "7", "COLUMNS": "40", "FORCE_COLOR": "1",
}  # fmt: skip


CORES = 64 if os.cpu_count() == 2 else 2  # Inductor compares them with the number of threads


@pytest.mark.parametrize(
    "name", [f"compiler/{it}" for it in ("graph_breaks", "what_compile_does", "inductor_code", "training")]
)
def test_a_script_prints_the_same_on_another_machine(name, script, once, key, there):
    """Other cores, threads, vector instructions, locale, time zone, home and logs; what is measured apart."""
    settings = repr([ELSEWHERE, printing.ENVIRONMENT["cpu"], CORES])
    usual = printing.printed(name, "cpu", script)
    run = key(printing.module_of(name), settings)
    elsewhere = printing.printed(name, "cpu", lambda module, _: once(run, lambda: there(module)))
    assert list(elsewhere) == list(usual)
    for section, content in usual.items():
        assert printing.comparable(elsewhere[section]) == printing.comparable(content), section


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], CompletedProcess[str]]]:
    """`there(module)`: how a script ended there. The server of that machine starts with the first one."""

    @functools.cache
    def server() -> Server:
        home = tmp_path_factory.mktemp("home")
        (home / "sitecustomize.py").write_text(f"import os\n\nos.cpu_count = lambda: {CORES}\n")
        with pytest.MonkeyPatch.context() as patch, one_core():
            for variable, value in (ELSEWHERE | {"PYTHONPATH": str(home), "HOME": str(home)}).items():
                patch.setenv(variable, value)
            return Server(printing.environment("cpu"), ROOT)

    yield lambda module: server().run(["-m", module])
    if server.cache_info().currsize:
        server().close()


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """This process, and what it starts, on one core of those that it has."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usual)})
    yield
    os.sched_setaffinity(0, usual)


# ---- nox -s record --------------------------------------------------------------------------------------------------


SHOWN = [
    Asked("a/page.md", "kernels/add", "first", ""), Asked("a/page.md", "kernels/add", "second", "cpu"),
    Asked("b.md", "kernels/add", "third", ""), Asked("b.md", "b", "new", "gpu"),
]  # fmt: skip
PINNED = {"torch": "2.13.0", "triton": "3.7.1"}


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Captures]:
    """What is stored of a script on a GPU, and of what run."""
    monkeypatch.setattr(printing, "pinned", lambda: PINNED)

    def stored(**run: object) -> Captures:
        root = tiny.project(tmp_path)
        path = tiny.printed(
            root, {"first": "hello\n"}, **{"software": {"torch": "2.13.0+cu130", "triton": "3.7.1"}} | run
        )
        return Captures.load(path.parents[1], root)

    return stored


def test_a_script_is_recorded_with_all_that_any_page_shows_of_it(known):
    """A device that a page leaves open is the GPU where that has the section."""
    assert record.wanted(SHOWN, SHOWN, known(), "cpu") == {"kernels/add": {"second": None, "third": None}}
    assert record.wanted(SHOWN[:1], SHOWN, known(), "cpu") == {"kernels/add": {"second": None, "third": None}}
    assert record.wanted(SHOWN, SHOWN, known(), "cuda") == {"kernels/add": {"first": None}, "b": {"new": None}}


def test_pages_and_scripts_are_picked_by_name():
    assert record.picked(SHOWN, []) == SHOWN
    assert record.picked(SHOWN, ["a/page"]) == SHOWN[:2] and record.picked(SHOWN, ["kernels/add"]) == SHOWN[:3]
    with pytest.raises(PublishError, match="page or script: expected one of a/page, kernels/add, b; got 'a/pag'; did"):
        record.picked(SHOWN, ["a/pag"])
    for name in ("compiler/graph-breaks", "compiler/graph_breaks"):  # whose script is there
        with pytest.raises(PublishError, match=r"found none: write \{\{ output\(\"NAME\"\) \}\} on its page, then run"):
            record.picked(SHOWN, [name])


def document(**sections: str) -> dict:
    runs = [{"software": {"torch": "2.13.0"}}, {"software": {"torch": "2.14.0+cpu"}}]
    parts = [{"section": name, "run": "new" in text, "content": text} for name, text in sections.items()]
    return {"runs": runs, "sections": parts}


def test_what_changed_is_shown_without_what_differs_in_every_run():
    old = document(one="add  3.25 ms\nmul  yes\n", two="the same\n")
    assert not list(record.changes("kernels/add", old, document(one="add  18 us\nmul  yes\n", two="the same\n")))
    new = document(one="add  18 us\nmul  no\n", two="the same\n")
    assert [line for line in record.changes("kernels/add", old, new) if line[0] in "+-" and line[1] not in "+-"] == [
        "-mul  yes",
        "+mul  no",
    ]
    (line,) = record.changes("kernels/add", old, document(two="the same\n", one=old["sections"][0]["content"]))
    assert line == "kernels/add: the sections come in another order"


def test_a_script_that_fails_does_not_keep_the_others_from_being_recorded(monkeypatch, capsys):
    def capture(script: str, device: str, wanted: object, commit: str) -> tuple[dict, dict]:
        if script == "a":
            raise RuntimeError("python -m snippets.a: no")
        return document(one="x"), document(one="y")

    monkeypatch.setattr(printing, "capture", capture)
    assert record.again({"a": {}, "b": {}}, "") == ["a"]
    said = capsys.readouterr().out
    assert "[1/2] a failed\npython -m snippets.a: no\n[2/2] b 0 s: changed\n" in said and "+y\n" in said
    assert said.endswith("1 of 2 scripts failed: a\n")


def test_other_versions_alone_are_no_change(monkeypatch, capsys):
    """And they are said once, for all sections."""
    old = document(one="x", two="y")
    new = {"runs": old["runs"][1:], "sections": old["sections"]}
    monkeypatch.setattr(printing, "capture", lambda *_: (old, new))
    assert not record.again({"a": {}}, "")
    assert capsys.readouterr().out == ("[1/1] a 0 s: as it was, with other versions\na: torch 2.13.0 -> torch 2.14.0\n")
    new = {"runs": old["runs"][1:], "sections": document(one="z", two="y")["sections"]}
    assert not record.again({"a": {}}, "")
    assert "a 0 s: changed, with other versions\n" in capsys.readouterr().out


def test_what_no_page_shows_is_removed(monkeypatch, tmp_path, capsys):
    for script in ("a", "b"):
        (tmp_path / f"{script}.cpu.json").touch()
    monkeypatch.setattr(printing, "scripts", lambda device: ["a", "b"])
    monkeypatch.setattr(printing, "path_of", lambda script, device: tmp_path / f"{script}.{device}.json")
    record.forget({"a": {}})
    assert [path.name for path in tmp_path.iterdir()] == ["a.cpu.json"]
    assert "b: no page shows it" in capsys.readouterr().out


CHANGED = "the code or the timing method has changed since, or nothing is stored; on a machine with a GPU:"
OTHERS = (
    f"the code is the same, the versions are others than torch {PINNED['torch']} and triton {PINNED['triton']}; "
    "on a machine with a GPU:"
)


def test_a_gpu_is_given_what_is_stale_missing_or_of_other_versions_and_told_which(known, tmp_path):
    def commands(captures: Captures, wanted: dict, **software: str) -> list[str]:
        root = tiny.project(tmp_path)
        run = tiny.write(root, tiny.record(root, software=PINNED | software))
        return record.on_a_gpu(wanted, captures, Store.load(run.parents[1], root)).splitlines()

    stored, older = {"kernels/add": {"first": None}}, {"torch": "2.11.0", "triton": "3.6.0"}
    assert commands(known(), stored) == ["nothing is left for a GPU"]
    again = "python -m tests.benchmarks.captures kernels/add"
    assert commands(known(sources="0" * 16), stored) == [CHANGED, again]
    assert commands(known(software=older), stored) == [OTHERS, again]
    assert commands(known(sources="0" * 16, software=older), stored) == [CHANGED, again]
    missing = commands(known(), stored | {"b": {"a section": None}})
    assert missing == [CHANGED, "python -m tests.benchmarks.captures 'b:a section'"]
    measured = "python -m tests.benchmarks kernels/add"
    assert commands(known(), stored, torch="2.11.0") == [OTHERS, measured]
    assert commands(known(sources="0" * 16), stored, torch="2.11.0") == [CHANGED, again, OTHERS, measured]
