"""How a cache's answers are read, and where all caches lie."""

from collections import Counter

from torch._inductor.runtime.cache_dir_utils import cache_dir, triton_cache_dir

from snippets.compiler.compile_time_cache_outcome import caches_in, said


def test_one_graph_that_was_not_there_makes_the_answer_a_miss():
    """Forward and backward may be answered apart."""
    assert said(Counter(cache_hit=1, cache_miss=1), "cache") == "miss"
    assert said(Counter(cache_hit=1, cache_bypass=1), "cache") == "bypass"
    assert said(Counter(), "cache") == "not asked"


def test_all_caches_lie_in_the_folder_whatever_was_said_before(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    with caches_in(tmp_path):
        assert cache_dir() == str(tmp_path) and triton_cache_dir(0).startswith(str(tmp_path))
