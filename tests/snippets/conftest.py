"""Tests of snippets capture and compile hundreds of graphs."""

from functools import partial

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def guards_are_not_timed():
    """Dynamo flushes a cache and times every new graph's guards, 0.06 s of a core; it logs the time, and no more."""
    import torch._dynamo.guards

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch._dynamo.guards, "profile_guard_manager", lambda *_: 0.0)
        yield


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, torch.compile does all but write C++: that takes seconds, and is torch's, not ours.

    patterns/test_transformer_block.py compares what C++ computes of all parts together.
    """
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager_decomp_partition"))
