"""What tests of pages share."""

from pathlib import Path

import pytest

from tests.pages import tiny


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tiny project."""
    return tiny.project(tmp_path)
