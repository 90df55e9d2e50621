"""What scripts print is split into sections, tidied, compared and stored with its run."""

import json
import shutil
import subprocess

import pytest

from tests.benchmarks import captures, machine

INSTALLED = machine.software()
GREETING = '"""A greeting."""\nprint("==== first")\nprint("hello")\nprint("==== second")\nprint("it takes 3.25 ms")\n'


@pytest.fixture
def snippet(tmp_path, monkeypatch):
    """A checkout with one committed snippet that prints two sections, in place of ours."""
    monkeypatch.setattr(captures, "ROOT", tmp_path)
    file = tmp_path / "snippets" / "greeting.py"
    file.parent.mkdir()
    file.write_text(GREETING)
    commit(tmp_path)
    return file


def commit(folder):
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "a snippet"]):
        who = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
        subprocess.run(["git", *who, *arguments], cwd=folder, check=True)


@pytest.fixture
def record(snippet, tmp_path):
    """`record(*wanted)`: what is stored of the snippet, once it has run and these sections were wanted."""

    def stored(*wanted: str, commit: str = "abc") -> dict:
        captures.capture("greeting", "cpu", wanted, commit, tmp_path / "out")
        return json.loads((tmp_path / "out" / "greeting.cpu.json").read_text())

    return stored


def test_a_section_is_stored_with_its_run(snippet, tmp_path):
    assert captures.main(["greeting", "--out", str(tmp_path / "out")]) == 0
    stored = json.loads((tmp_path / "out" / "greeting.cpu.json").read_text())
    assert [(each["section"], each["content"]) for each in stored["sections"]] == [
        ("first", "hello\n"),
        ("second", "it takes 3.25 ms\n"),
    ]
    (run,) = stored["runs"]
    assert run["command"] == "python -m snippets.greeting" and len(run["commit"]) == 40
    assert run["machine"]["kind"] == "cpu" and run["software"]["torch"] and "sources" not in run


def test_what_says_what_it_said_keeps_its_bytes(record, snippet, tmp_path):
    first = record("first", "second")
    snippet.write_text(GREETING.replace("3.25", "18.5"))
    assert record("first", "second", commit="def") == first
    snippet.write_text(GREETING.replace("hello", "goodbye").replace("3.25", "18.5"))
    again = record("first", "second", commit="def")
    assert [each["content"] for each in again["sections"]] == ["goodbye\n", "it takes 3.25 ms\n"]
    assert [each["run"] for each in again["sections"]] == [0, 1] and again["runs"][1] == first["runs"][0]


def test_other_versions_make_a_section_again_that_says_the_same(record, snippet, monkeypatch):
    first = record("first")
    monkeypatch.setattr(machine, "software", lambda: INSTALLED | {"torch": "99.1.0"})
    assert record("first")["runs"][0]["software"]["torch"] == "99.1.0"
    assert first["runs"][0]["software"]["torch"] == INSTALLED["torch"]


def test_what_is_not_wanted_is_not_stored(record):
    assert [each["section"] for each in record("second")["sections"]] == ["second"]
    assert [each["section"] for each in record("first", "second")["sections"]] == ["first", "second"]


def test_sections_are_split_at_their_headings():
    assert captures.sections("before\n==== a b\none\n\n==== c, d\n") == {"a b": "one\n\n", "c, d": ""}
    assert captures.sections("no heading\n") == {"": "no heading\n"}


def test_a_section_that_is_printed_twice_is_refused(record, snippet):
    snippet.write_text(GREETING.replace("second", "first"))
    with pytest.raises(
        RuntimeError, match=r"python -m snippets\.greeting: expected each section once, got 'first' again"
    ):
        record()


MAIN = """

if __name__ == "__main__":
    greet()
"""


def test_a_changed_import_makes_what_a_gpu_printed_stale_and_a_comment_does_not(snippet):
    word = snippet.with_name("word.py")
    word.write_text("WORD = 'hello'\n")
    snippet.write_text(f"def greet():\n    from snippets.word import WORD\n    print(WORD)\n{MAIN}")
    captures.reached.__globals__["named"].cache_clear()
    assert captures.files_of("greeting") == ["snippets/greeting.py", "snippets/word.py"]
    before = captures.source_hash("greeting")
    word.write_text("# a comment\nWORD = 'hello'\n")
    assert captures.source_hash("greeting") == before
    word.write_text("WORD = 'goodbye'\n")
    assert captures.source_hash("greeting") != before


def test_a_function_in_another_file_and_one_that_does_not_run_make_nothing_stale(snippet):
    greet, said = "def greet():\n    print(said())\n", "def said():\n    return 'hello'\n"
    snippet.write_text(f"{said}\n\n{greet}{MAIN}")
    before = captures.source_hash("greeting")
    snippet.with_name("word.py").write_text(said)
    snippet.write_text(f"from snippets.word import said\n\n\n{greet}\n\ndef unused():\n    return 1\n{MAIN}")
    assert captures.source_hash("greeting") == before
    snippet.with_name("word.py").write_text(said.replace("hello", "goodbye"))
    assert captures.source_hash("greeting") != before


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        ("nothing", 2, "nothing: expected the name of a script, and snippets/nothing.py does not exist"),
        ("greeting:third", 1, "greeting: expected a section 'third', got ['first', 'second']"),
    ],
)
def test_what_cannot_be_captured_is_said_in_one_line(snippet, tmp_path, capsys, name, status, message):
    assert captures.main([name, "--out", str(tmp_path / "out")]) == status
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_script_that_fails_is_said_in_one_line(snippet, tmp_path, capsys):
    snippet.write_text("raise SystemExit('out of order')\n")
    assert captures.main(["greeting", "--out", str(tmp_path / "out"), "--commit", "abc"]) == 1
    assert capsys.readouterr().err == "python -m snippets.greeting: out of order\n"


def test_uncommitted_code_is_not_captured(snippet, tmp_path, capsys):
    snippet.write_text("print('not committed')\n")
    assert captures.main(["greeting", "--out", str(tmp_path / "out")]) == 1
    assert "commit these first" in capsys.readouterr().err
    assert captures.main(["greeting", "--out", str(tmp_path / "out"), "--commit", "abc"]) == 0


def test_outside_a_checkout_the_commit_must_be_given(snippet, tmp_path, capsys):
    shutil.rmtree(tmp_path / ".git")
    assert captures.main(["greeting", "--out", str(tmp_path / "out")]) == 1
    assert "--commit" in capsys.readouterr().err


def test_only_measured_quantities_and_places_may_differ():
    more = r"after \d+ calls"
    first, other = "add    3.25 ms 12% after 7 calls", "add  410.0 us   4% after 81 calls"
    assert captures.comparable(first, more) == captures.comparable(other, more)
    for changed in ("mul  410.0 us   4% after 81 calls", "add  410.0 us   4% after 81 times"):
        assert captures.comparable(first, more) != captures.comparable(changed, more)
    assert captures.comparable("4 kernels") != captures.comparable("5 kernels")
    assert captures.comparable("16.777 MB") != captures.comparable("16.778 MB")
    assert captures.comparable("a.py:12 in f, line 12") == captures.comparable("a.py:7 in f, line 7")
    assert captures.comparable("a.py:12 in f") != captures.comparable("b.py:12 in f")


def test_what_varies_in_a_script_stands_in_its_test(snippet, tmp_path):
    assert captures.varies("greeting") == {}
    test = tmp_path / "tests" / "snippets" / "test_greeting.py"
    test.parent.mkdir(parents=True)
    test.write_text('import not_installed\n\nVARIES = {"first": r"hello|goodbye"}  # by mood\n')
    assert captures.varies("greeting") == {"first": "hello|goodbye"}


def test_what_belongs_to_one_machine_is_removed():
    root = captures.ROOT
    raw = f"{root}/snippets/a.py {root}/.nox/lib/python3.12/site-packages/torch/fx.py at 0x7f00aa00bb00 {'ab' * 16}"
    assert captures.tidy(raw) == "snippets/a.py torch/fx.py at 0x… …\n"


def test_cpp_loses_its_casts():
    line = "    auto tmp0 = in_ptr0[static_cast<int64_t>(x1 + 1024L*x0)];"
    assert captures.tidy(line) == "  auto tmp0 = in_ptr0[x1 + 1024L*x0];\n"


def test_lines_are_stored_whole_and_shown_broken():
    line = "    value = call(" + "argument, " * 12 + "last)"
    assert captures.tidy(line) == f"{line}\n"
    broken = captures.fitted(line)
    assert len(broken) > 1 and all(len(part) <= captures.WIDTH for part in broken)
    assert broken[1].startswith(" " * 8)
    assert captures.fitted("\n".join(broken)) == broken and captures.comparable(line) == captures.comparable(
        "\n".join(broken)
    )
    word = f"    {'x' * captures.WIDTH}"
    assert captures.fitted(word) == [word]
