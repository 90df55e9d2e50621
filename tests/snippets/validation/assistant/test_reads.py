"""`assistant read`, on what PyTorch itself writes here: traces of a CPU with stacks, logs, a folder of TORCH_TRACE."""

import gzip
import os
import subprocess
import sys

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from snippets.validation.assistant import spent
from snippets.validation.assistant.__main__ import main
from snippets.validation.assistant.lines import Line
from snippets.validation.assistant.reads import read_all

READ = ("tests/forked.py", "tests/benchmarks/captures.py")  # by the fixture `forked`: named for remembered.py
PROGRAM = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if x.sum() > 0:
            x = x * self.calls
        return x.relu()


model = torch.compile(Model(), backend="eager")
for _ in range(3):
    model(torch.ones(4))
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A folder with the program, its log and its structured trace."""
    folder = tmp_path_factory.mktemp("ran")
    (folder / "program.py").write_text(PROGRAM)
    asked = {
        "TORCH_LOGS": "graph_breaks,recompiles",
        "TORCH_LOGS_OUT": str(folder / "log.txt"),
        "TORCH_TRACE": str(folder / "trace"),
    }
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=os.environ | asked, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (folder / "stderr.txt").write_text(f"epoch 0\n{done.stderr}")
    return folder


@pytest.mark.parametrize("name", ["log.txt", "stderr.txt", "trace"])
def test_breaks_and_recompilations_have_their_lines(name, ran):
    losses = read_all([ran / name]).losses
    found = {loss.cause: loss for loss in losses}
    lines = PROGRAM.splitlines()
    assert found["graph-break"].line == Line(
        str(ran / "program.py"), lines.index("        if x.sum() > 0:") + 1, "forward"
    )
    assert found["graph-break"].times == 3 and found["graph-break"].page == "compiler/graph-breaks.md#branch"
    at = lines.index("        self.calls += 1") + 1  # the rest of the function, after the break, is compiled again, too
    (again,) = (one for one in losses if one.cause == "recompilation" and one.line.number == at)
    assert again.line == Line(str(ran / "program.py"), at, "forward")
    assert again.times == 2 and again.detail == "failed: self.calls == 0"
    assert (again.seconds > 0) == (name == "trace")  # a log has no seconds


TRAINING = """import sys
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

model = nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())


def step():
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()


step()
with profile(activities=[ProfilerActivity.CPU], with_stack=True, acc_events=True) as profiler:
    step()
profiler.export_chrome_trace(sys.argv[1])
"""  # in a process of its own: other tests may have put profilers' hooks around the optimizer's step


def multiplying():
    matrix = torch.ones(512, 512)
    with profile(activities=[ProfilerActivity.CPU], with_stack=True, acc_events=True) as profiler:
        for _ in range(5):
            matrix @ matrix
    return profiler


def test_a_real_trace_with_stacks_leads_to_the_line(tmp_path, monkeypatch, forked):
    """Whatever its share of the time, which depends on what else runs: a part of it may be a wait for a core."""
    monkeypatch.chdir(tmp_path)  # a trace names a file as sys.path of its process makes it
    monkeypatch.setattr(spent, "LEAST", 0.0)
    (tmp_path / "train.py").write_text(TRAINING)
    done = forked([str(tmp_path / "train.py"), "trace.json"], tmp_path)
    assert done.returncode == 0, done.stderr
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress((tmp_path / "trace.json").read_bytes()))
    found = {loss.cause: loss for loss in read_all([packed]).losses}
    assert found["optimizer"].line.text == "optimizer.step()"


def test_a_real_clean_trace_has_no_loss(tmp_path, capsys):
    multiplying().export_chrome_trace(str(tmp_path / "trace.json"))
    assert main(["read", str(tmp_path / "trace.json")]) == 0
    assert "\nnothing stands out\nlongest operation: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"import torch", "is text that begins with 'import torch'"),
        (b'{"a": 1}', "is JSON without traceEvents"),
        (gzip.compress(b"text", mtime=0), "is packed or binary"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "dur": 1}]}', "breaks off, or is of another version"),
        (b'{"traceEvents": []}', "has no operation"),
    ],
)
def test_what_is_none_of_these_is_refused_in_a_line(content, said, tmp_path, capsys):
    (tmp_path / "file").write_bytes(content)
    assert main(["read", str(tmp_path / "file")]) == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith("assistant: ") and error.count("\n") == 1


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path, capsys):
    assert main(["read", str(tmp_path / "none")]) == 2 and main(["read", str(tmp_path)]) == 2
    assert "cannot be read: No such file" in (said := capsys.readouterr().err) and "a folder without them" in said
