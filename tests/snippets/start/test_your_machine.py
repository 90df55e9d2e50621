"""Your machine: workers that import the script need its guard."""

from pathlib import Path

import pytest

from snippets.start import your_machine

READ = "tests/benchmarks/captures.py", "tests/forked.py"  # to run the script in
GUARD = 'if __name__ == "__main__":'


@pytest.mark.parametrize(
    ("guard", "printed", "error"),
    [(GUARD, "[0, 1, 2, 3]\n[4, 5, 6, 7]\n", ""), ("if True:", "", "bootstrapping phase")],
)
def test_spawned_workers_need_the_guard(tmp_path: Path, guard: str, printed: str, error: str, forked) -> None:
    script = tmp_path / "script.py"
    script.write_text(Path(your_machine.__file__).read_text().replace(GUARD, guard))
    done = forked([str(script)], tmp_path)
    assert done.stdout == printed
    assert error in done.stderr and bool(done.returncode) == bool(error)
