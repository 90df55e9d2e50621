"""What tests of pages share."""

import functools
from pathlib import Path

import pytest

from docs.publish.records.store import Store
from tests.pages import tiny


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tiny project."""
    return tiny.project(tmp_path)


@functools.cache
def everything() -> Store:
    """All that is published, read once in a process: that takes seconds."""
    return Store.load(local=False)


@pytest.fixture(scope="session")
def published() -> Store:
    return everything()
