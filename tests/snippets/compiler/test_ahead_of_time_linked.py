"""A package with the C++ library linked into it cannot be loaded; which it is, its list of libraries says."""

import re
import shutil
import subprocess

import pytest

from snippets.compiler.ahead_of_time_linked import SHARED, STATIC, needs
from tests.snippets.compiler.cpp_library import PROBE, skip_where_it_is_twice
from tests.snippets.compiler.test_ahead_of_time import lines

VARIES = {"linked": r"Error: .*|SIG\w+"}  # the compiler's words: see tests/benchmarks/captures.py


def test_a_package_that_does_not_ask_for_the_cpp_library_does_not_load(script):
    done = script(PROBE, "cpu")
    assert done.returncode == 0, done.stderr[-2000:]
    skip_where_it_is_twice(script)
    _, usual, static = lines(done.stdout, "linked")
    assert re.fullmatch(r"the usual options +yes +returns 8 rows", usual)
    if not re.search(r"-static-libstdc\+\+ +no ", static):
        pytest.skip("this compiler has no static C++ library")
    assert "returns" not in static and static.split()[-1]


def test_the_libraries_of_a_package_are_read_from_it(tmp_path):
    (tmp_path / "empty.cpp").write_text('extern "C" int one() { return 1; }\n')
    command = ["g++", "-shared", "-fPIC", "-Wl,--no-as-needed", "-o", "model.so", "empty.cpp"]
    subprocess.run(command, cwd=tmp_path, check=True)
    (tmp_path / "package").mkdir()
    (tmp_path / "model.so").rename(tmp_path / "package" / "model.so")
    package = shutil.make_archive(str(tmp_path / "model"), "zip", tmp_path, "package")
    assert SHARED in needs(package)


def test_only_what_links_a_library_is_linked_statically(tmp_path):
    (tmp_path / "g++").write_text(STATIC.format(compiler="echo"))
    (tmp_path / "g++").chmod(0o755)
    said = [
        subprocess.run([str(tmp_path / "g++"), *given], capture_output=True, text=True, check=True).stdout.strip()
        for given in (["-shared", "a.o"], ["-c", "a.cpp"])
    ]
    assert said == ["-static-libstdc++ -shared a.o", "-c a.cpp"]
