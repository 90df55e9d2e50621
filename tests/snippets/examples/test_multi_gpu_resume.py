"""A checkpoint of two ranks goes on with one and with four; every sample comes once, and the same after a stop."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from snippets.examples import multi_gpu_resume as resume
from snippets.examples import multi_gpu_resume_state
from snippets.examples.multi_gpu_failures_group import Group, outputs

CPU = {"CUDA_VISIBLE_DEVICES": ""}


def test_a_checkpoint_of_two_ranks_goes_on_with_one_and_with_four(tmp_path: Path) -> None:
    def ran(case: Callable, ranks: int, name: str) -> str:
        return outputs([Group(case, tmp_path / name, CPU, ranks=ranks, limit=20).begin()])[0][0]

    assert "async_save returns" in ran(partial(resume.save, tmp_path), 2, "save")
    for kind, ranks in (("saved", 1), ("saved", 4), ("async", 4)):
        said = ran(partial(resume.resume, tmp_path, kind), ranks, f"{kind} on {ranks}")
        assert f"{kind}, loaded on {ranks}, step 3: equal weights True, AdamW True" in said
        assert float(said.split("later loss ")[1]) < 1e-5
    expected = torch.load(tmp_path / "expected.pt")
    assert len(set(expected["losses"])) == resume.LAST - resume.SAVED
    model, _ = multi_gpu_resume_state.made(torch.device("cpu"))
    assert not multi_gpu_resume_state.same(dict(model.state_dict()), expected["weights"])
    resume.load_plain(model, tmp_path / "saved")
    assert multi_gpu_resume_state.same(dict(model.state_dict()), expected["weights"])
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [".metadata", "__0_0.distcp", "__1_0.distcp"]
