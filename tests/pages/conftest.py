"""What tests of pages share."""

from pathlib import Path

import pytest

from docs.publish.records.store import Store
from tests.pages import tiny


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tiny project."""
    return tiny.project(tmp_path)


@pytest.fixture(scope="session")
def published() -> Store:
    """All that is published, read once: that takes seconds."""
    return Store.load(local=False)
