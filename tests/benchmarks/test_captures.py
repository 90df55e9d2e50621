"""What pages show as captured output is what the scripts print today."""

import functools
import json
import os
import re
import shutil
import subprocess

import pytest
import torch

from tests.benchmarks import captures, machine
from tests.benchmarks.captures import CAPTURES, PUBLISHED, Output
from tests.benchmarks.source import ROOT

# These tests run with what is read there, and import none of it. Named here, it counts for tests/remembered.py.
READ = ("tests/forked.py", "tests/snippets/validation/planted")
SCRIPTS = sorted({(capture.module, capture.device) for capture in CAPTURES})


@functools.cache
def stored(name: str) -> dict:
    return json.loads(captures.path_of(name).read_text())


def test_no_two_captures_have_one_name_and_each_is_stored():
    names = [capture.name for capture in CAPTURES]
    assert len(names) == len(set(names)), f"named twice: {sorted({name for name in names if names.count(name) > 1})}"
    files = {path.relative_to(PUBLISHED).with_suffix("").as_posix() for path in PUBLISHED.rglob("*.json")}
    assert files == set(names)


def is_whole(content: dict, capture: Output) -> bool:
    """Whether the file has its commit and is of the script, section and sources that the capture names."""
    command = f"python -m {capture.module}"
    said = {"name": capture.name, "language": capture.language, "command": command, "section": capture.section}
    of_its_own = said.items() <= content.items() and content["sources"]["files"] == capture.sources
    return of_its_own and content["schema"] == captures.SCHEMA and bool(content["commit"])


def test_a_stored_capture_is_whole_and_belongs_to_todays_code():
    wrong = [capture.name for capture in CAPTURES if not is_whole(stored(capture.name), capture)]
    stale = [capture.name for capture in CAPTURES if captures.is_stale(stored(capture.name))]
    assert not wrong + stale, f"capture these again: python -m tests.benchmarks.captures {' '.join(wrong + stale)}"


def test_what_a_cpu_prints_was_captured_with_the_pinned_torch():
    """What another release printed is not run again, and would be on the pages unseen."""
    pinned = re.search(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    versions = {
        capture.name: stored(capture.name)["software"]["torch"] for capture in CAPTURES if capture.device == "cpu"
    }
    others = {name: version for name, version in versions.items() if version.partition("+")[0] != pinned}
    assert not others, f"capture these again, with torch {pinned}: {others}"


def test_no_capture_may_differ_in_everything():
    empty = [each.name for each in CAPTURES if not re.search(r"\w", each.comparable(stored(each.name)["content"]))]
    assert not empty, f"name what differs: {empty}"


def from_elsewhere(content: dict, device: str) -> str:
    """What made a stored capture that this machine cannot make again; "" if it can."""
    if not captures.same_software(content):
        return f"torch {content['software']['torch']} on {content['software']['os']}"
    if device == "cuda" and machine.describe(torch.device("cuda"))["slug"] != content["machine"]["slug"]:
        return content["machine"]["name"]
    return ""


@pytest.mark.parametrize(("module", "device"), SCRIPTS)
def test_a_script_still_prints_what_the_pages_show(module, device, script):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("captured on a GPU")
    every = [capture for capture in CAPTURES if (capture.module, capture.device) == (module, device)]
    elsewhere = {where for capture in every if (where := from_elsewhere(stored(capture.name), device))}
    mine = [capture for capture in every if not from_elsewhere(stored(capture.name), device)]
    for capture, content in captures.contents(mine, script):
        assert capture.comparable(content) == capture.comparable(stored(capture.name)["content"]), capture.name
    if elsewhere:
        pytest.skip(f"{len(every) - len(mine)} of {len(every)} captured with {', '.join(sorted(elsewhere))}")


ELSEWHERE = {
    "ATEN_CPU_CAPABILITY": "avx2", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "3",
    "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "0", "TORCHINDUCTOR_CPP_FORCE_INLINE_KERNEL": "1",
    "TORCHINDUCTOR_VEC_ISA_OK": "1", "TORCH_LOGS": "output_code,guards",
    "TRITON_PRINT_AUTOTUNING": "1", "TZ": "Asia/Kolkata", "LC_ALL": "C", "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0", "PYTHONHASHSEED": "7", "COLUMNS": "40", "FORCE_COLOR": "1",
}  # fmt: skip


@pytest.mark.parametrize("module", [captures._BREAKS, captures._COMPILER, captures._INDUCTOR, captures._TRAINING])
def test_a_script_prints_the_same_on_another_machine(module, script, once, key, tmp_path, monkeypatch, one_core):
    """Other cores, threads, vector instructions, locale, time zone, home and logs; what is measured apart."""
    cores = 64 if os.cpu_count() == 2 else 2  # Inductor compares them with the number of threads
    there = key(module, repr([ELSEWHERE, captures.ENVIRONMENT["cpu"], cores]))  # before the variables change
    (tmp_path / "sitecustomize.py").write_text(f"import os\n\nos.cpu_count = lambda: {cores}\n")
    for name, value in (ELSEWHERE | {"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    everything = Output(module, module, language="cpp")
    usual = captures.run(module, "cpu", script)
    elsewhere = captures.run(module, "cpu", lambda *asked: once(there, lambda: captures.finished(*asked)))
    assert everything.comparable(elsewhere) == everything.comparable(usual)


@pytest.fixture
def one_core():
    """This process, and what it starts, on one core of those that it has."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usual)})
    yield
    os.sched_setaffinity(0, usual)


# ---- the tool -------------------------------------------------------------------------------------------------------


@pytest.fixture
def snippet(tmp_path, monkeypatch):
    """A checkout with one committed snippet that prints two sections, in place of ours."""
    monkeypatch.setattr(captures, "ROOT", tmp_path)
    file = tmp_path / "snippets" / "greeting.py"
    file.parent.mkdir()
    file.write_text('"""A greeting."""\nprint("==== first")\nprint("hello")\nprint("==== second")\nprint("3.25 ms")\n')
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "a snippet"]):
        who = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True)
    monkeypatch.setattr(
        captures,
        "CAPTURES",
        (
            Output("greeting/first", "snippets.greeting", "first"),
            Output("greeting/all", "snippets.greeting"),
            Output("greeting/missing", "snippets.greeting", "third"),
            Output("greeting/gpu", "snippets.greeting", device="cuda"),
        ),
    )
    return file


def test_a_capture_is_stored_with_its_provenance(snippet, tmp_path):
    assert captures.main(["greeting/first", "--out", str(tmp_path / "out")]) == 0
    content = json.loads((tmp_path / "out" / "greeting" / "first.json").read_text())
    assert content["content"] == "hello\n"
    assert content["command"] == "python -m snippets.greeting"
    assert content["sources"]["files"] == ["snippets/greeting.py"]
    assert len(content["commit"]) == 40 and content["machine"]["kind"] == "cpu" and content["software"]["torch"]


def test_a_changed_snippet_makes_its_capture_stale_and_a_comment_does_not(snippet):
    content = {"sources": {"files": ["snippets/greeting.py"]}}
    content["sources"]["hash"] = captures.source_hash(content["sources"]["files"])
    snippet.write_text("# a comment\n" + snippet.read_text())
    assert not captures.is_stale(content)
    snippet.write_text(snippet.read_text().replace("hello", "goodbye"))
    assert captures.is_stale(content)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nothing"], 2, "no such capture: nothing"),
        (["greeting/missing"], 1, "greeting/missing: expected a section 'third', got ['first', 'second']"),
        pytest.param(
            ["greeting/gpu"], 2, "sees no GPU", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
        ),
    ],
)
def test_what_cannot_be_captured_is_said_in_one_line(snippet, tmp_path, capsys, arguments, status, message):
    assert captures.main([*arguments, "--out", str(tmp_path / "out")]) == status
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_script_that_fails_is_said_in_one_line(snippet, tmp_path, capsys):
    snippet.write_text("raise SystemExit('out of order')\n")
    assert captures.main(["greeting/all", "--out", str(tmp_path / "out"), "--commit", "abc"]) == 1
    assert capsys.readouterr().err == "python -m snippets.greeting: out of order\n"


def test_uncommitted_code_is_not_captured(snippet, tmp_path, capsys):
    snippet.write_text("print('not committed')\n")
    assert captures.main(["greeting/all", "--out", str(tmp_path / "out")]) == 1
    assert "commit these first" in capsys.readouterr().err
    assert captures.main(["greeting/all", "--out", str(tmp_path / "out"), "--commit", "abc"]) == 0


def test_outside_a_checkout_the_commit_must_be_given(snippet, tmp_path, capsys):
    shutil.rmtree(tmp_path / ".git")
    assert captures.main(["greeting/all", "--out", str(tmp_path / "out")]) == 1
    assert "--commit" in capsys.readouterr().err


def test_only_measured_quantities_may_differ():
    capture = Output("a", "b", varies=r"after \d+ calls")
    first, other = "add    3.25 ms 12% after 7 calls", "add  410.0 us   4% after 81 calls"
    assert capture.comparable(first) == capture.comparable(other)
    for changed in ("mul  410.0 us   4% after 81 calls", "add  410.0 us   4% after 81 times"):
        assert capture.comparable(first) != capture.comparable(changed)
    assert capture.comparable("4 kernels") != capture.comparable("5 kernels")
    assert capture.comparable("16.777 MB") != capture.comparable("16.778 MB")


def test_a_ranked_report_may_change_places_and_not_what_it_reports():
    """Of the assistant on a GPU: which changes it tried is compared, and what came of each is measured."""
    (capture,) = (each for each in CAPTURES if each.name == "validation/assistant/llama-trials")
    head, *trials = re.split(r"\n  (?=[+?-] )", stored(capture.name)["content"].rstrip("\n"))
    assert len(trials) == 4

    def report(trials: list[str]) -> str:
        return capture.comparable("\n  ".join([head, *trials]) + "\n")

    slower = f"- {trials[0][2:].partition(':')[0]}: refused, no faster: 0.94x (0.77 to 1.19)"
    assert report([*trials[1:], slower]) == report(trials)
    assert report(trials[1:]) != report(trials)
    assert report([trials[0].replace("flag", "mask"), *trials[1:]]) != report(trials)


def test_what_belongs_to_one_machine_is_removed():
    raw = f"{ROOT}/snippets/a.py {ROOT}/.nox/lib/python3.12/site-packages/torch/fx.py at 0x7f00aa00bb00 {'ab' * 16}"
    assert captures.tidy(raw, "text") == "snippets/a.py torch/fx.py at 0x… …\n"


def test_long_lines_are_broken_and_cpp_loses_its_casts():
    line = "    auto tmp0 = in_ptr0[static_cast<int64_t>(x1 + 1024L*x0)];"
    assert captures.tidy(line, "cpp") == "  auto tmp0 = in_ptr0[x1 + 1024L*x0];\n"
    broken = captures.tidy("    value = call(" + "argument, " * 12 + "last)", "python").splitlines()
    assert len(broken) > 1 and all(len(part) <= captures.WIDTH for part in broken)
    assert broken[1].startswith(" " * 8)
