"""Each compilation is told with the line that called, the reason and the seconds, and nothing else is."""

import importlib
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from snippets.compiler import which_call
from snippets.compiler.which_call import watch_compilations

HERE = Path(__file__).name
TOLD = re.compile(
    r"\[(?P<id>\d+/\d+)\] \d+\.\d\d s, called by (?P<lines>.+)\n {6}(?P<function>[\w.<>]+): (?P<reason>.+)"
)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def looped(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = x.sin()
        torch._dynamo.graph_break()
    return x


@pytest.fixture
def told() -> Iterator[list[re.Match[str]]]:
    """What is told meanwhile."""
    torch.compiler.reset()
    lines: list[re.Match[str]] = []

    def keep(line: str) -> None:
        match = TOLD.fullmatch(line)
        assert match, line
        lines.append(match)

    stop = watch_compilations(keep)
    yield lines
    stop()


def reasons(told: list[re.Match[str]]) -> list[str]:
    return [line["reason"] for line in told]


def test_a_call_is_told_by_its_line_and_only_if_it_compiles(told):
    compiled = torch.compile(double, backend="eager")
    first = line_of(lambda: compiled(torch.ones(4)))
    compiled(torch.ones(4))
    second = line_of(lambda: compiled(torch.ones(5)))
    assert [line["lines"].partition(" in ")[0] for line in told] == [f"{HERE}:{first}", f"{HERE}:{second}"]
    assert [(line["id"], line["function"]) for line in told] == [("0/0", "double"), ("0/1", "double")]
    assert reasons(told) == ["new", "again, tensor 'x' size mismatch at index 0. expected 4, actual 5"]


def line_of(call: Callable[[], object]) -> int:
    """The line of a lambda, which is called."""
    call()
    return call.__code__.co_firstlineno


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_a_module_is_told_by_the_line_that_calls_it(told):
    compiled = torch.compile(Doubled(), backend="eager")
    line = line_of(lambda: compiled(torch.ones(2, 4)))
    assert [(each["lines"], each["function"]) for each in told] == [(f"{HERE}:{line} in <lambda>", "Doubled.forward")]


def test_the_grad_mode_is_a_reason(told):
    compiled = torch.compile(double, backend="eager")
    compiled(torch.ones(4))
    with torch.no_grad():
        compiled(torch.ones(4))
    assert reasons(told) == ["new", "again, GLOBAL_STATE changed: grad_mode"]


def test_a_backward_is_told_where_it_is_called(told):
    x = torch.ones(4, requires_grad=True)
    compiled = torch.compile(double, backend="aot_eager")
    loss = compiled(x).sum()
    line = line_of(lambda: loss.backward())
    assert reasons(told) == ["new", "its backward"]
    assert told[-1]["lines"] == f"{HERE}:{line} in <lambda>"


def test_what_is_given_up_is_told_as_such(told):
    torch.compile(looped, backend="eager")(torch.ones(4))
    assert reasons(told) == ["new; given up: Unsupported"]


def test_a_call_inside_of_an_except_is_not_given_up(told):
    try:
        raise ValueError
    except ValueError:
        torch.compile(double, backend="eager")(torch.ones(4))
    assert reasons(told) == ["new"]


def test_a_thread_without_a_line_is_told_by_that_of_the_main_thread(monkeypatch):
    """As autograd's threads on a GPU, all of whose frames are torch's."""
    found: list[str] = []
    monkeypatch.setattr(which_call, "outside", lambda frame: iter(() if frame is not main() else [frame]))
    thread = threading.Thread(target=lambda: found.append(which_call.calling_lines()))
    thread.start()
    thread.join()
    assert found and found[0].startswith(("threading.py", HERE))


def main():
    import sys

    return sys._current_frames().get(threading.main_thread().ident)


def test_a_package_is_told_with_the_line_that_called_it(told, tmp_path, monkeypatch):
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "elsewhere.py").write_text("def call(function, x):\n    return function(x)\n")
    monkeypatch.syspath_prepend(package)
    elsewhere = importlib.import_module("elsewhere")
    compiled = torch.compile(double, backend="eager")
    line = line_of(lambda: elsewhere.call(compiled, torch.ones(4)))
    assert told[0]["lines"] == f"elsewhere.py:2 in call from {HERE}:{line} in <lambda>"


def test_after_stop_nothing_is_told():
    torch.compiler.reset()
    lines: list[str] = []
    stop = watch_compilations(lines.append)
    stop()
    torch.compile(double, backend="eager")(torch.ones(4))
    assert not lines


def test_the_program_of_the_page(told):
    """A function in two graphs, its backwards, another size, and another grad mode."""
    which_call.program()
    rest = r"torch_dynamo_resume_in_loss_at_\d+"
    new, size = "new", r"again, tensor '\w+' size mismatch at index 0\. expected 4, actual 6"
    expected = [
        ("loss", new), (rest, new), (rest, "its backward"), ("loss", "its backward"),
        ("loss", size), (rest, size),
        ("loss", "again, GLOBAL_STATE changed: grad_mode"), (rest, "again, GLOBAL_STATE changed: grad_mode"),
    ]  # fmt: skip
    assert len(told) == len(expected)
    for line, (function, reason) in zip(told, expected, strict=True):
        assert re.fullmatch(function, line["function"]) and re.fullmatch(reason, line["reason"]), line
