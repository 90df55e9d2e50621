"""What a notebook shows of an experiment."""

import re

import torch
import torch.nn.functional as F

from snippets.notebooks.triton_optimization import run
from snippets.notebooks.triton_optimization_report import listing

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_a_report_shows_the_kernels_whole_and_a_bar_for_each_time(tmp_path, experiment):
    report = run(experiment(compiled=("written out, compiled",)), tmp_path)
    code = report.code("written out, compiled")
    assert code.startswith("@triton.jit" if DEVICE.type == "cuda" else 'extern "C"') and "'''" not in code
    whole = (report.folder / "generated" / "written-out-compiled.py").read_text()
    assert code.splitlines()[-1].strip() and "static_cast<int64_t>" not in code
    if DEVICE.type == "cpu":  # the words are all there but for the casts, and no line is as far in as it was
        plain = re.sub(r"static_cast<int64_t>\(([^()]*)\)", r"\1", whole[whole.index('extern "C"') :])
        assert code.split() == plain.split()[: len(code.split())]
        assert max(len(line) - len(line.lstrip()) for line in code.splitlines()[8:]) < 30
    assert DEVICE.type == "cpu" or code.rstrip() in whole
    shown = report._repr_html_()
    assert shown.count(" ms</b>") == 2 and "nowrap" in shown and "--rp-eager" in shown and "--rp-compile" in shown
    assert "width: 75.0%" in shown, "the longest time has the longest bar"
    assert "--rp-ours" not in shown, "none of these is ours"


def test_two_experiments_can_be_compared_line_by_line(tmp_path, experiment):
    one = run(experiment(compiled=("written out, compiled",)), tmp_path)
    double = {"plain": lambda x: 2 * F.silu(x), "doubled": lambda x: 2 * x * torch.sigmoid(x)}
    other = run(experiment(name="doubled", variants=double, compiled=("doubled",)), tmp_path)
    assert one.diff("written out, compiled", one, "written out, compiled") == ""
    diff = one.diff("written out, compiled", other, "doubled")
    assert diff.startswith("--- written out, compiled\n+++ doubled\n") and re.search(r"^\+.*2\.0", diff, re.M)


def test_a_listing_links_the_files_of_some_experiments(tmp_path):
    for name in ("silu/metadata.json", "silu-large/metadata.json", "gelu/metadata.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert listing(tmp_path, "silu").files == ("silu/metadata.json", "silu-large/metadata.json")
    assert listing(tmp_path)._repr_html_().count('<li><a href="../experiments/') == 3
