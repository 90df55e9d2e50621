"""Four calls are one graph, and a time is of one call after three that warm up."""

import pytest

from snippets.examples import fp8_training_layers


def test_three_calls_warm_up_before_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def timed(call: object, device: object, at_least: float) -> float:
        assert len(calls) == 3
        return 0.002

    monkeypatch.setattr(fp8_training_layers, "seconds_per_call", timed)
    assert fp8_training_layers.milliseconds(lambda: calls.append(1)) == 2


def test_each_size_has_a_row_with_a_quarter_of_a_graph(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fp8_training_layers, "forward_and_backward", lambda columns, rows, name: columns * rows)
    monkeypatch.setattr(fp8_training_layers, "captured", lambda step, calls: step * calls)
    monkeypatch.setattr(fp8_training_layers, "milliseconds", lambda graph: graph / 2**20)
    fp8_training_layers.by_size(("bf16", "rowwise"))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[2] for row in rows] == ["1.000", "4.000", "16.000", "64.000", "7.000"]
    assert all(len(row) == 6 and row[2] == row[4] for row in rows)
