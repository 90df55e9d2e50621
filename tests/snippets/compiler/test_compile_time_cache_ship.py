"""What is no artifact is refused."""

import pytest

from snippets.compiler.compile_time_cache_ship import unpack


def test_what_is_no_artifact_is_refused(tmp_path):
    file = tmp_path / "artifacts"
    file.write_bytes(b"nonsense")
    with pytest.raises(RuntimeError, match="expected artifacts"):
        unpack(file)
