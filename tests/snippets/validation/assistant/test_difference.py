"""Two reports: what must fail a build, and what must let it pass."""

import copy
import json

import pytest
import torch
from torch import nn

from snippets.validation.assistant import analyze, validate
from snippets.validation.assistant.__main__ import main
from snippets.validation.assistant.difference import difference
from snippets.validation.assistant.report import as_json
from snippets.validation.assistant.subject import Refused

pytestmark = pytest.mark.usefixtures("one_core")


class Waits(nn.Module):
    def forward(self, x):
        return x * x.sum().item()


@pytest.fixture(scope="module")
def report():
    """Of a module with findings, as if it had been timed."""
    content = json.loads(as_json(analyze(Waits(), torch.ones(64, 64))))
    assert content["findings"] and content["step"] is None
    return content | {"step": steps(1.0)}


def steps(scale: float) -> dict:
    return {"p20": 0.9 * scale, "p50": scale, "p80": 1.1 * scale, "samples": 15, "calls": None}


def changed(report, change) -> dict:
    after = copy.deepcopy(report)
    change(after)
    return after


def set_fact(name, value):
    return lambda report: report["facts"].update({name: value(report["facts"][name])})


def edit_line(**what):
    return lambda report: [one["lines"][0].update(what) for one in report["findings"]]


def another_finding(**what):
    def add(report):
        one = copy.deepcopy(report["findings"][0])
        one["lines"][0] |= {"text": "another line", "number": 99}
        report["findings"].append(one | what)

    return add


WORSE = {
    "a finding of another kind": (another_finding(kind="copy"), "99: another line"),
    "the same kind once more in the same function": (another_finding(), "another line"),
    "a finding more often": (lambda report: report["findings"][0].update(times=3), "(2 times)"),
    "the same line in another file": (edit_line(file="/other.py"), "other.py"),
    "the line in another function, edited": (edit_line(function="g", text="x"), ": x"),
    "a slower step": (lambda report: report.update(step=steps(1.5)), "step slower: 1500.000 ms, before 1000.000 ms"),
    "more memory": (set_fact("peak", lambda peak: 2 * peak), "peak of a step"),
    "memory where there was none": (set_fact("parameters", lambda _: 400), "parameters: 400 bytes, before 0 bytes"),
    "no capture any more": (set_fact("error", lambda _: "Unsupported"), "torch.compile raises Unsupported"),
    "less known": (lambda report: report.update(limits=["no graphs: interrupted"]), "left out: no graphs"),
}
FINE = {
    "nothing": lambda report: None,
    "no finding any more": lambda report: report.update(findings=[]),
    "a note": another_finding(kind="copy", weight="note"),
    "lines further down": edit_line(number=1000),
    "another checkout": edit_line(file="/elsewhere/test_difference.py"),
    "the line edited": edit_line(text="return x.sum().item() * x"),
    "the line moved into another function": edit_line(function="helper"),
    "a faster step": lambda report: report.update(step=steps(0.5)),
    "a step within the spread": lambda report: report.update(step=steps(1.15)),
    "no time": lambda report: report.update(step=None),
    "another device": lambda report: (report["facts"].update(device="H100"), report.update(step=steps(9.0))),
    "less memory": set_fact("peak", lambda peak: peak // 2),
    "half a percent of memory": set_fact("peak", lambda peak: round(1.005 * peak)),
}


@pytest.mark.parametrize("name", WORSE)
def test_what_is_worse_is_told_in_a_line(report, name):
    change, message = WORSE[name]
    worse = [str(one) for one in difference(report, changed(report, change)) if one.worse]
    assert worse and all("\n" not in line and line.startswith("worse ") for line in worse)
    assert any(message in line for line in worse)


@pytest.mark.parametrize("name", FINE)
def test_what_is_not_worse_passes(report, name):
    assert not [str(one) for one in difference(report, changed(report, FINE[name])) if one.worse]


@pytest.mark.parametrize("name", ["no finding any more", "a faster step", "less memory"])
def test_what_is_better_is_told(report, name):
    assert {one.word for one in difference(report, changed(report, FINE[name]))} == {"better"}


@pytest.mark.parametrize("name", ["a step within the spread", "half a percent of memory", "lines further down"])
def test_what_is_no_difference_is_not_told(report, name):
    assert difference(report, changed(report, FINE[name])) == []


@pytest.mark.parametrize("name", ["no time", "another device"])
def test_what_cannot_be_compared_is_told(report, name):
    assert [one.word for one in difference(report, changed(report, FINE[name]))] == ["other"]


def test_the_reverse_of_what_is_better_is_worse(report):
    assert [one.worse for one in difference(changed(report, FINE["less memory"]), report)] == [True]


def test_verdicts_are_compared_by_the_changed_module(untimed):
    module, x = nn.Linear(32, 8), torch.randn(4, 32)
    right, wrong = (json.loads(as_json(validate(module, other, x, rounds=5))) for other in (module, nn.Linear(32, 8)))
    wrong["times"] = right["times"]
    assert [str(one)[:13] for one in difference(right, wrong)] == ["worse   WRONG"]
    assert [str(one)[:13] for one in difference(wrong, right)] == ["better  right"]
    slower = changed(right, lambda report: report["times"].update(step=[steps(1.0), steps(9.0)]))
    right["times"]["step"] = [steps(1.0), steps(1.0)]
    assert [str(one) for one in difference(right, slower)] == ["worse   step slower: 9000.000 ms, before 1000.000 ms"]


def test_a_report_and_a_verdict_are_not_compared(report):
    with pytest.raises(Refused, match="one report is of a module"):
        difference(report, {"schema": 1, "checks": []})


def test_the_command_ends_with_a_status(report, tmp_path, capsys):
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps(report))
    after.write_text(json.dumps(changed(report, WORSE["more memory"][0])))
    assert main(["diff", str(before), str(before)]) == 0 and capsys.readouterr().out == "no difference\n"
    assert main(["diff", str(before), str(after)]) == 1 and capsys.readouterr().out.count("\n") == 1
    assert main(["diff", str(after), str(before)]) == 0 and capsys.readouterr().out.startswith("better ")


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "[]", "{}", '{"schema": 2, "facts": {}}', '{"schema": 1}', "\xff", '{"schema": 1, "facts": {}}'],
)
def test_what_is_no_report_gets_one_line(text, tmp_path, capsys):
    file = tmp_path / "report.json"
    if text is not None:
        file.write_text(text, encoding="latin-1")
    assert main(["diff", str(file), str(file)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
