"""A changed decomposition is not part of the key, and a new tag is."""

import pytest

from snippets.compiler.compile_cache import answer


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))


def test_a_changed_decomposition_is_a_hit_that_returns_the_old_result():
    assert answer(3.0) == ("miss", "miss", True)
    assert answer(2.0) == ("hit", "hit", False)
    assert answer(2.0, tag="2") == ("miss", "miss", True)


def test_the_script_shows_it_in_a_process_of_its_own(script):
    done = script("snippets.compiler.compile_cache")
    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines()[2:]] == ["yes", "no", "yes"]
