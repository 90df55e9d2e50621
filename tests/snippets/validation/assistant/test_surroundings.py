"""Whatever a module's code can reach is afterwards as it was, and a forward runs at most four times."""

import collections
import random
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from snippets.validation.assistant import analyze, validate
from snippets.validation.assistant.graphs import Captured
from snippets.validation.assistant.report import as_text
from snippets.validation.assistant.surroundings import WATCHED
from tests.snippets.validation.planted.changes import Net, line
from tests.snippets.validation.planted.working import WORKING, made

pytestmark = pytest.mark.usefixtures("one_core")

KEPT, COUNTED, SEEN, RECENT = [], collections.Counter(), set(), collections.deque(maxlen=3)
TOTAL, TABLE = torch.zeros(16), {"rows": [], "last": None}
OWN, NUMBERS, DRAWS = torch.Generator().manual_seed(5), np.random.default_rng(5), random.Random(5)
CALLS = 0


class Log:
    """An object of no module, with a list of its class."""

    every: ClassVar[list] = []
    last = None

    def __init__(self):
        self.rows = []

    def note(self, value):
        self.rows.append(value)
        Log.every.append(value)
        Log.last = value


LOG = Log()


def hooked(module, inputs, output):
    KEPT.append(output)


def changes_everything(m, x, log, batch):
    global CALLS
    CALLS += 1
    y = m.fc(x)
    COUNTED["calls"] += 1
    SEEN.add(len(SEEN))
    RECENT.append(y)
    TOTAL.add_(y.detach().mean(0))
    TABLE["rows"].append(y)
    TABLE["last"] = y
    LOG.note(y)
    log.note(y)
    batch["y"] = y
    torch.rand((), generator=OWN)
    NUMBERS.random(), DRAWS.random(), random.random(), np.random.random()
    return y


def state():
    """All that the module may change, as values."""
    return [
        len(KEPT), dict(COUNTED), set(SEEN), len(RECENT), TOTAL.tolist(), len(TABLE["rows"]), TABLE["last"],
        len(Log.every), Log.last, len(LOG.rows), CALLS, OWN.get_state().tolist(), str(NUMBERS.bit_generator.state),
        DRAWS.getstate(), random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist(),
    ]  # fmt: skip


def busy():
    """A module with a hook, one that keeps a list in a closure, and inputs that it writes to."""
    rows = []
    torch.manual_seed(0)
    module = Net(changes_everything, line())
    module.fc.register_forward_hook(hooked)
    module.fc.register_forward_hook(lambda *_: rows.append(1))
    module.fc.register_forward_pre_hook(partial(lambda kept, *_: kept.append(2), rows))
    return module, rows, (torch.randn(8, 16), Log(), {"x": 1})


@pytest.mark.parametrize("tool", ["analyze", "validate"])
def test_what_a_modules_code_reaches_is_as_it_was(tool, untimed):
    module, rows, inputs = busy()
    other = busy()[0]
    before = state()
    if tool == "analyze":
        analyze(module, *inputs)
    else:
        assert validate(module, other, *inputs, rounds=2).right
    assert state() == before and rows == [] and inputs[1].rows == [] and inputs[2] == {"x": 1}
    module(*inputs)
    assert len(KEPT) == 1 and rows == [2, 1]  # its hooks are still its own
    KEPT.clear()


def appends(m, x, path):
    with open(path, "a") as file:
        file.write("a line\n")
    return m.fc(x)


def test_files_are_as_they_were_and_what_cannot_be_undone_is_said(tmp_path):
    log, made_anew, folder = tmp_path / "log.txt", tmp_path / "new.txt", tmp_path / "folder"
    log.write_text("before\n")

    def run(m, x):
        appends(m, x, made_anew)
        Path(folder).mkdir(exist_ok=True)
        return appends(m, x, log)

    report = analyze(Net(run, line()), torch.randn(8, 16))
    assert log.read_text() == "before\n" and not made_anew.exists()
    assert f"os.mkdir of {folder} was not undone" in report.limits and "Left out" in as_text(report)
    assert WATCHED.current is None


@pytest.mark.parametrize("caller", ["torch/_inductor/cache.py", "torch/utils/_filelock.py"])
def test_what_a_compiler_has_a_package_do_is_not_the_authors(caller, tmp_path):
    """Such as filelock, which tries what the file system can do."""
    package = {}
    probe = compile("def probe(folder): folder.mkdir()", str(tmp_path / "site-packages" / "filelock" / "a.py"), "exec")
    exec(probe, package)

    def by(file):
        names = dict(package)
        exec(compile("def called(folder): probe(folder)", str(tmp_path / "site-packages" / file), "exec"), names)
        return names["called"]

    def report(call, folder):
        return analyze(Net(lambda m, x: call(folder) or m.fc(x) if not folder.exists() else m.fc(x), line()), x).limits

    x = torch.randn(8, 16)
    assert not any("os.mkdir" in limit for limit in report(by(caller), tmp_path / "a"))
    assert any("os.mkdir" in limit for limit in report(by("somebody/b.py"), tmp_path / "b"))


def test_a_forward_runs_at_most_four_times_and_the_report_says_how_often(monkeypatch):
    """Counted at each layer's kernel, which Dynamo cannot skip."""
    wrong = {}
    for name in WORKING:
        ran = []
        module, inputs = made(name)
        inner = module.run
        module.run = torch.compiler.disable(lambda *given, inner=inner, ran=ran: (ran.append(1), inner(*given))[1])
        monkeypatch.setattr("snippets.validation.assistant.surroundings.refill", lambda *_: None)
        report = analyze(module, *inputs)
        if len(ran) > 4 or len(ran) != report.facts.runs:
            wrong[name] = len(ran), report.facts.runs
        assert f"the forward ran {report.facts.runs} times" in as_text(report)
    assert wrong == {}


def test_no_working_module_is_refused(untimed, monkeypatch):
    monkeypatch.setattr("snippets.validation.assistant.verdict.capture", lambda _: Captured())  # `analyze` has done it
    refused = {}
    for name in WORKING:
        (module, inputs), (other, _) = made(name), made(name)
        try:
            analyze(module, *inputs)
            assert (verdict := validate(module, other, *inputs, rounds=2)).right, verdict
        except Exception as error:  # noqa: BLE001  # each is told
            refused[name] = f"{type(error).__name__}: {error}"
    assert refused == {}


class Interrupts(nn.Module):
    """Ctrl-C at the n-th forward."""

    ran = 0

    def __init__(self, at):
        super().__init__()
        self.fc, self.at = nn.Linear(16, 16), at

    @torch.compiler.disable
    def count(self):
        ran.append(1)
        if len(ran) >= self.at:
            raise KeyboardInterrupt

    def forward(self, x):
        self.count()
        return self.fc(x)


ran = []


def test_an_interrupt_ends_with_what_is_known(monkeypatch):
    monkeypatch.setattr("snippets.validation.assistant.surroundings.refill", lambda *_: None)
    ran.clear()
    report = analyze(Interrupts(2), torch.randn(8, 16))
    assert report.facts.calls > 0 and report.limits == ("no graphs: interrupted",)


def test_nothing_begins_when_the_budget_is_spent():
    report = analyze(Net(lambda m, x: m.fc(x), line()), torch.randn(8, 16), budget=0.0, measure=True)
    assert report.facts.runs == 1 and "no graphs: 0 s were spent before" in report.limits
    assert {trial.refused for trial in report.trials} == {"not tried: 0 s were spent before"}
