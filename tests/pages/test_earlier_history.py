"""The mapping of hashes is what the history says. A file of its own: it depends on no page and no snippet of today."""

import subprocess

import pytest

from docs.publish.records import earlier


def test_the_committed_mapping_is_what_the_history_says():
    try:
        found = earlier.computed()
    except subprocess.CalledProcessError:
        pytest.skip("needs the history of the repository")
    assert earlier.KNOWN.read_text() == earlier.text(found), "run python -m docs.publish.records.earlier"
