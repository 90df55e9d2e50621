"""A second life begins at the step that the first one saved."""

from pathlib import Path

import pytest
import torch

from snippets.examples.multi_gpu_failures_restart import dies


def test_a_second_life_begins_where_the_first_one_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "localhost"}
    for name, value in (alone | {"MASTER_PORT": 0, "TORCHELASTIC_RESTART_COUNT": 1}).items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    (tmp_path / "step.txt").write_text("4")
    dies(tmp_path)
    assert capsys.readouterr().out.startswith("life 1 begins at step 4 ")
    assert (tmp_path / "step.txt").read_text() == "6"
