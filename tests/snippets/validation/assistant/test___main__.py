"""The assistant as a whole: its folder alone, its command line, and models that nobody here wrote."""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from snippets.validation.assistant import analyze
from snippets.validation.assistant.__main__ import main
from snippets.validation.assistant.report import as_html, as_json, as_text
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


def test_the_folder_stands_alone_and_its_command_works(tmp_path):
    shutil.copytree(ROOT / "snippets" / "validation" / "assistant", tmp_path / "assistant")
    (tmp_path / "model.py").write_text(MODEL)
    command = [sys.executable, "-m", "assistant", "model.py:make", "--json", "r.json", "--html", "r.html"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "model.py:12" in done.stdout and "Tensor.item()" in done.stdout and "capturing its graphs" in done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["schema"] == 1
    assert "<!doctype html>" in (tmp_path / "r.html").read_text()


def test_pip_installs_all_of_the_folder_and_its_command(tmp_path):
    folder = ROOT / "snippets" / "validation" / "assistant"
    shutil.copytree(folder, tmp_path / "source", ignore=shutil.ignore_patterns("__pycache__"))  # pip writes beside it
    pip = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index", "--target"]
    done = subprocess.run([*pip, "site", "./source"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    installed, ours = (
        {path.relative_to(where).as_posix() for path in where.rglob("*.py")} for where in (tmp_path / "site", folder)
    )
    assert installed == {f"assistant/{file}" for file in ours}
    (tmp_path / "before.json").write_text('{"schema": 1, "facts": {}}')
    command = [tmp_path / "site" / "bin" / "assistant", "diff", "before.json", "missing.json"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and done.stderr == "assistant: missing.json cannot be read: No such file or directory\n"


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("missing/report", "there is no folder missing for report"),
        ("model.py/report", "there is no folder"),
        (".", "is a folder"),
    ],
)
@pytest.mark.parametrize("option", ["--html", "--json"])
def test_a_report_that_cannot_be_written_is_refused_before_the_run(
    option, file, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("raise AssertionError('it ran')")
    assert main(["model.py:make", option, file]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def trained():
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).eval(), torch.ones(4, 8)


def frozen():
    module, x = trained()
    return module.requires_grad_(False), x


def test_a_training_step_is_of_a_module_in_training_mode(tmp_path, capsys):
    outside, inside = tmp_path / "eval.json", tmp_path / "train.json"
    assert main([f"{__name__}:trained", "--json", str(outside)]) == 0
    assert main([f"{__name__}:trained", "--json", str(inside), "--train-step"]) == 0
    facts = [json.loads(file.read_text())["facts"] for file in (outside, inside)]
    assert facts[0]["calls"] < facts[1]["calls"] or facts[0]["saved"] < facts[1]["saved"]  # of dropout
    assert facts[1]["backward"]


@pytest.mark.parametrize("against", [[], ["--against", f"{__name__}:frozen"]])
def test_a_module_without_a_gradient_has_no_training_step(against, capsys, untimed):
    assert main([f"{__name__}:frozen", *against, "--train-step"]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("…")]
    assert said == ["assistant: Sequential has no training step: no output has a gradient"]


def test_the_command_line_ends_with_one_line_where_it_cannot_go_on(capsys):
    assert main(["snippets.validation.assistant:nothing"]) == 2
    message = capsys.readouterr().err
    assert (
        message.startswith("assistant: snippets.validation.assistant has no factory 'nothing'")
        and message.count("\n") == 1
    )


@functools.cache
def report_of(name):
    subject = made(real.MODELS[name])
    return analyze(subject.module, *subject.inputs, named=subject.named, measure=False)


def kinds_of(name):
    report = report_of(name)
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
    found = [one for one in report_of("Llama").findings if one.kind == "mask"]
    assert [(one.title, Path(one.line.file).name) for one in found] == [
        ("Under torch.compile the flag is_causal is lost", "sdpa_attention.py")
    ]
