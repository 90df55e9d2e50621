"""Tests of snippets capture and compile hundreds of graphs."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def guards_are_not_timed():
    """Dynamo flushes a cache and times every new graph's guards, 0.06 s of a core; it logs the time, and no more."""
    import torch._dynamo.guards

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch._dynamo.guards, "profile_guard_manager", lambda *_: 0.0)
        yield
