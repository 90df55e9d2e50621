"""The assistant as a whole: its files alone in a folder, its command line, and models that nobody here wrote."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from snippets.validation import assistant
from snippets.validation.assistant import analyze, find, traced
from snippets.validation.assistant_capture import capture
from snippets.validation.assistant_report import as_html, as_json, as_text
from tests.benchmarks.source import ROOT
from tests.snippets.validation.planted import real
from tests.snippets.validation.planted.seen import faults, made

pytestmark = pytest.mark.usefixtures("one_core")


MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        y = self.fc(x)
        return y * y.sum().item()

def make():
    torch.manual_seed(0)
    return Model(), torch.ones(4, 8)
"""


def test_the_files_stand_alone_and_the_command_line_works(tmp_path):
    """Copied into an empty folder, with the three tools that they use."""
    folder = tmp_path / "snippets" / "validation"
    folder.mkdir(parents=True)
    for file in (ROOT / "snippets" / "validation").glob("*.py"):
        if file.stem.startswith("assistant") or file.stem in ("timing", "equivalence", "roofline", "__init__"):
            shutil.copy(file, folder)
    (tmp_path / "model.py").write_text(MODEL)
    command = [
        sys.executable,
        "-m",
        "snippets.validation.assistant",
        "model.py:make",
        "--json",
        "r.json",
        "--html",
        "r.html",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert "model.py:12" in done.stdout and "Tensor.item()" in done.stdout and "capturing its graphs" in done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["schema"] == 1
    assert "<!doctype html>" in (tmp_path / "r.html").read_text()


def test_the_command_line_ends_with_one_line_where_it_cannot_go_on(capsys):
    assert assistant.main(["snippets.validation.assistant:nothing"]) == 2
    message = capsys.readouterr().err
    assert (
        message.startswith("assistant: snippets.validation.assistant has no factory 'nothing'")
        and message.count("\n") == 1
    )


def kinds_of(name):
    subject = made(real.MODELS[name])
    report = analyze(subject.module, *subject.inputs, named=subject.named, measure=False)
    assert as_text(report) and as_html(report) and as_json(report)
    assert not report.facts.error
    return {one.kind for one in faults(report.findings)} - {"host-bound"}  # as every tiny model is on a GPU


def test_a_resnet_has_nothing_to_find():
    assert kinds_of("ResNet") == set()


REAL = {
    "Llama": {"norm", "rotary", "gated-mlp", "projections"},
    "BERT": {"projections"},
    "ViT": {"projections"},
    "Whisper": {"projections", "copy", "graph-break"},
    "Mixtral": {"norm", "rotary", "projections"},
}


@pytest.mark.parametrize("name", REAL)
def test_real_models_run_to_the_end(name):
    pytest.importorskip("transformers")
    assert REAL[name] <= kinds_of(name)


def test_the_flag_that_llama_loses_under_compile_is_found():
    """Transformers 5.17 says is_causal in eager and builds the mask as a tensor while it is traced (issue 48925)."""
    transformers = pytest.importorskip("transformers")
    if transformers.__version__ != "5.17.0":
        pytest.skip("the version that shows it is 5.17.0")
    subject = made(real.MODELS["Llama"])
    found = [one for one in find(traced(subject), capture(subject)) if one.kind == "mask"]
    assert [(one.title, Path(one.line.file).name) for one in found] == [
        ("Under torch.compile the flag is_causal is lost", "sdpa_attention.py")
    ]
