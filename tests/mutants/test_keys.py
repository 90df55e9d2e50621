"""Results are remembered by keys (tests/remembered.py): what those of this tree depend on, and what not."""

from tests import remembered
from tests.mutants.mutant import ROOT, load


def test_every_mutant_changes_the_key_of_the_test_that_kills_it():
    """Each is a change that its test sees: a key that does not see it would remember a wrong result."""
    missed = {
        mutant.name: f"{mutant.test_file} does not reach {mutant.file}"
        for mutant in load()
        if ROOT / mutant.file not in remembered.reached_by_test(ROOT, ROOT / mutant.test_file)
    }
    assert not missed


def test_a_snippets_test_reaches_no_case_of_another():
    """All that compare what a script prints import how it is captured: a chain from there to the cases ends it."""
    test = ROOT / "tests/snippets/compiler/test_compile_time.py"
    found = {path.relative_to(ROOT).as_posix() for path in remembered.reached_by_test(ROOT, test)}
    assert "tests/benchmarks/captures.py" in found
    assert not found & {"snippets/compiler/modes.py", "tests/benchmarks/compiler/modes.py"}


def test_what_builds_and_tests_the_project_is_reached_and_what_it_made_is_not():
    found = {
        str(path.relative_to(ROOT)) for path in remembered.reached_by_test(ROOT, ROOT / "tests/pages/test_readme.py")
    }
    assert {".ci/run", ".github/workflows/site.yml", "README.md", "constraints.txt", "noxfile.py"} <= found
    whole = {
        str(path.relative_to(ROOT)) for path in remembered.reached_by_test(ROOT, ROOT / "tests/site/test_links.py")
    }
    assert {"mkdocs.yml", ".ci/run", "docs/pages/index.md"} <= whole
    assert not [
        path for path in found | whole if path.startswith((".nox", ".cache", ".git/", "docs/measurements/local"))
    ]


def test_a_kernels_tests_reach_what_they_depend_on_and_no_other_kernel():
    found = {
        str(path.relative_to(ROOT)) for path in remembered.reached_by_test(ROOT, ROOT / "tests/kernels/test_rope.py")
    }
    assert found >= {
        "kernels/rope.py", "tests/kernels/promises/__init__.py", "tests/kernels/promises/results.py",
        "tests/kernels/conftest.py", "tests/kernels/interpreter.py",
        "tests/kernels/compiled.py", "tests/benchmarks/sides.py", "snippets/validation/equivalence.py",
        "snippets/validation/compiled_code.py",
    }  # fmt: skip
    assert not any(path.startswith("kernels/rms_norm") for path in found)
